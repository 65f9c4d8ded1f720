"""`agl serve store` as a person uses it."""

import asyncio
import os
import re
import signal
import subprocess

import pytest
from click.testing import CliRunner
from lightning_http import LightningStoreClient
from process_fixtures import environment, serving

from lightning_core.cli import agl
from lightning_core.errors import AccessDenied
from lightning_core.runs.folder import RunFolder
from lightning_core.testing.store.base import span_of
from lightning_core.types import EnqueueRolloutRequest


def refused(*arguments: str) -> str:
    """Run the command, which is wrong, in this process; return the one line that it says."""
    done = CliRunner(env=dict.fromkeys(os.environ.keys() - environment().keys())).invoke(agl, ["store", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr.strip().splitlines()[-1]


def test_it_serves_those_with_a_key_until_it_is_told_to_stop():
    options = ("--run", "run-7", "--key", "secret", "--runner-key", "other", "--drain-seconds", "0.2")
    with serving(*options) as (process, url):

        async def use() -> str:
            async with LightningStoreClient(url, key="secret") as client:
                await client.start_rollout("never ends")
            async with LightningStoreClient(url, key="other") as runner:
                assert await runner.dequeue_rollout() is None
                with pytest.raises(AccessDenied):
                    await runner.enqueue_rollout("b")
            return client.run_id

        assert asyncio.run(use()) == "run-7"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


async def run_of(url: str) -> str:
    """Return the run that those who name none work for."""
    async with LightningStoreClient(url) as client:
        await client.statistics()
        return client.run_id


def test_killed_and_started_again_it_goes_on_with_its_run_until_that_has_ended(tmp_path):
    pytest.importorskip("lightning_sqlite", reason="only what is kept in a file survives a kill")
    arguments = ("--backend", "sqlite", "--path", str(tmp_path / "store.db"))
    with serving(*arguments) as (_, url):
        first = asyncio.run(run_of(url))  # and nothing is written before the kill

    async def use(url: str) -> str:
        async with LightningStoreClient(url) as client:
            await client.enqueue_rollout("a")
            # Somebody else's, which is newer, and is not what is served.
            await client.for_run("another-run").enqueue_rollout("b")
            return client.run_id

    with serving(*arguments) as (process, url):
        assert asyncio.run(use(url)) == first
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == f"goes on with run {first}, which has not ended; --run NAME serves another one\n"

    async def end(url: str) -> str:
        async with LightningStoreClient(url) as client:
            claimed = await client.dequeue_rollout("w")
            assert claimed is not None
            assert claimed.input == "a"
            for run_id in (client.run_id, "another-run"):
                await client.for_run(run_id).end_run()
            return client.run_id

    with serving(*arguments) as (_, url):
        assert asyncio.run(end(url)) == first
    with serving(*arguments) as (_, url):
        assert asyncio.run(run_of(url)) not in (first, "another-run")
    with serving(*arguments, "--run", first) as (_, url):
        assert asyncio.run(run_of(url)) == first


def test_stopped_for_longer_than_a_lease_it_takes_nothing_from_living_workers(tmp_path):
    store = ("--backend", "sqlite", "--path", str(tmp_path / "store.db"), "--set", "lease_seconds=2.0")

    async def use(process: subprocess.Popen[str], url: str) -> None:
        async with LightningStoreClient(url) as client:
            await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(4)])
            workers = [f"w-{number}" for number in range(4)]
            await asyncio.gather(*map(client.update_worker, workers))
            claimed = await asyncio.gather(*map(client.dequeue_rollout, workers))
            process.send_signal(signal.SIGSTOP)
            look = asyncio.create_task(client.query_rollouts())
            await asyncio.sleep(2.5)  # of the server's process: no clock of ours can stand still for it
            process.send_signal(signal.SIGCONT)
            await look
            await asyncio.gather(*(client.update_worker(worker) for worker in workers))
            attempts = [await client.query_attempts(each.rollout_id) for each in claimed if each is not None]
            assert [[attempt.status for attempt in each] for each in attempts] == [["preparing"]] * 4

    with serving(*store) as (process, url):
        asyncio.run(use(process, url))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "memry"], "no store named 'memry'; installed: "),
        (["--backend", "sqlit"], "Did you mean 'sqlite'?"),
        (["--path", "x.db"], "store 'memory' has no option 'path'"),
        (["--host", "0.0.0.0"], "host 0.0.0.0 can be reached from other machines, so the store needs a key"),
        (["--host", "no.such.host.invalid", "--key", "k"], "host 'no.such.host.invalid' is unknown"),
        (["--port", "70000"], "port is 70000; it is from 0"),
        (["--key", ""], "--key is empty"),
        (["--run", ""], "--run is empty"),
        (["--runner-key", "r"], "there is a runner_key and no key"),
        (
            ["--cors-origin", "example.org/page"],
            "--cors-origin is 'example.org/page'; it is an origin such as https://",
        ),
        (["--backend", "sqlite", "--path", __file__], "is not an SQLite database"),
        (["--backend", "sqlite", "--path", "/proc/none/store.db"], "/proc/none/store.db cannot be opened"),
        (["extra"], "No such command 'extra'."),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_line_and_status_2(arguments, message):
    assert message in refused(*arguments)


def test_compact_makes_the_file_of_a_run_smaller(tmp_path):
    sqlite = pytest.importorskip("lightning_sqlite", reason="what is kept in a file can be compacted")
    folder = RunFolder.create(tmp_path, "run-1f")
    folder.manifest_file.write_text("{}")

    async def fill() -> None:
        store = sqlite.SqliteLightningStore(folder.store_file, run_id="run-1f")
        rollout = await store.start_rollout("task")
        await store.add_span(span_of(rollout, attributes={"text": os.urandom(50_000).hex()}))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        await store.delete_rollouts([rollout.rollout_id])
        await store.aclose()

    asyncio.run(fill())
    before = folder.store_file.stat().st_size
    done = CliRunner().invoke(agl, ["store", "compact", "1f", "--runs-dir", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert folder.store_file.stat().st_size < before


def test_compact_leaves_a_store_that_is_used(tmp_path):
    pytest.importorskip("lightning_sqlite", reason="what is kept in a file can be compacted")
    path = str(tmp_path / "store.db")
    with serving("--backend", "sqlite", "--path", path):
        done = CliRunner().invoke(agl, ["store", "compact", path])
    assert done.exit_code == 2
    assert re.search("locked|in use", done.stderr), done.stderr
