"""`agl worker` as a person uses it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_http.processes import ProcessesStrategy
from process_fixtures import environment, serving, still_alive

from lightning_core.algorithm import run_batch
from lightning_core.cli import agl
from lightning_core.store import InMemoryLightningStore, LightningStore

COMMAND = [sys.executable, "-W", "error", "-m", "lightning_core", "worker"]

AGENT = """
import asyncio, os
from lightning_core import rollout


@rollout
async def solve(task):
    if task == "wait":
        os.write(2, b"waiting\\n")
        await asyncio.Event().wait()
    return 2.0 * task


@rollout
def leave(task):
    os._exit(7)
"""

CONFIG = """
agent: solving:solve
algorithm: no_such_algorithm
train_dataset: no_such_file.jsonl
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "solving.py").write_text(AGENT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


@contextmanager
def joining(folder: Path, *arguments: str, **variables: str) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [*COMMAND, "config.yaml", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(**variables),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.communicate()


async def end_of(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for the end of a process; return its status and what it said."""
    said, errors = await asyncio.to_thread(process.communicate, timeout=200)
    return process.returncode, said, errors


@pytest.fixture
def url() -> Iterator[str]:
    """Where an `agl serve store` serves, with keys."""
    with serving(AGL_KEY="everything", AGL_RUNNER_KEY="runners") as (_, url):
        yield url


async def nobody(store: LightningStore, worker_id: int) -> None:
    """Be a runner that does nothing."""


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
async def test_store_that_is_served_by_itself_tells_it_that_the_run_has_ended(folder: Path, url: str, fails: bool):
    rewards: list[float] = []

    async def algorithm(store: LightningStore) -> None:
        rewards.extend((await run_batch(store, [1, 2, 3], mode="train")).rewards)
        if fails:
            raise LookupError("no more ideas")

    async with LightningStoreClient(url, key="everything") as store:

        async def run() -> None:
            options = ["--store", url, "--n-runners", "2", "--concurrency", "2"]
            with joining(folder, *options, AGL_KEY="runners") as process:
                ending = asyncio.create_task(end_of(process))
                with pytest.raises(LookupError) if fails else nullcontext():
                    await ProcessesStrategy("algorithm").execute(algorithm, nobody, store)
                status, said, errors = await ending
            joined = f"joined run {store.run_id} at {url} with 2 processes"
            assert (status, said.splitlines()) == (0, [joined, "the run has ended"]), errors

        await run()
        with joining(folder, "--store", url, "--key", "runners") as late:
            assert (await end_of(late))[:2] == (0, f"run {store.run_id} has ended; there is no more work\n")
        await store.begin_run()  # as every run does that is led again
        await run()
    assert rewards == [2.0, 4.0, 6.0] * 2


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_it_gives_back_what_it_works_on_when_it_is_told_to_end(folder: Path, number: int, status: int):
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="", runner_key="") as server:
        waiting = await store.enqueue_rollout("wait")
        with joining(folder, "--store", server.url) as process:
            assert process.stderr is not None
            assert await asyncio.to_thread(process.stderr.readline) == "waiting\n"
            children = psutil.Process(process.pid).children(recursive=True)
            began = time.monotonic()
            process.send_signal(number)
            assert (await end_of(process))[0] == status
            assert time.monotonic() - began < 30
        found = await store.get_rollout_by_id(waiting.rollout_id)
        assert found is not None
        assert found.status == "requeuing"
    assert still_alive(children, seconds=20.0) == []


async def test_it_works_for_the_run_that_is_named(folder: Path):
    store = InMemoryLightningStore()
    other = store.for_run("another-run")
    await store.enqueue_rollout(1)
    theirs = await other.enqueue_rollout(2)
    async with LightningStoreServer(store, key="", runner_key="") as server:
        with joining(folder, "--store", server.url, "--run", "another-run") as process:
            (ended,) = await other.wait_for_rollouts(rollout_ids=[theirs.rollout_id], timeout=30)
            await other.end_run()
            status, said, _ = await end_of(process)
    assert (ended.status, status) == ("succeeded", 0)
    assert said.splitlines()[0] == f"joined run another-run at {server.url} with 1 process"
    assert [each.status for each in await store.query_rollouts()] == ["queuing"]


async def test_too_many_deaths_end_it_with_status_1(folder: Path):
    store = InMemoryLightningStore()
    async with LightningStoreServer(store, key="", runner_key="") as server:
        await store.enqueue_rollout("a")
        options = ["--store", server.url, "--max-restarts", "0", "--set", "agent=solving:leave"]
        with joining(folder, *options) as process:
            status, _, errors = await end_of(process)
    assert status == 1
    assert "1 runner processes have died, and max_restarts is 0: runner 0" in errors
    assert "ended with exit code 7" in errors


async def test_wrong_key_is_one_line_and_status_2(folder: Path):
    async with LightningStoreServer(InMemoryLightningStore(), key="right", runner_key="") as server:
        with joining(folder, "--store", server.url, "--key", "wrong") as process:
            status, said, errors = await end_of(process)
        assert (status, said) == (2, "")
        (line,) = errors.splitlines()
        assert line.startswith(f"Error: the store at {server.url} refuses: this ")
        assert line.endswith("; give the run's runner key, with --key or AGL_KEY")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "http://127.0.0.1:1"], "the store at http://127.0.0.1:1 was out of reach for"),
        (["--store", "127.0.0.1:4747"], "'127.0.0.1:4747' is not the address of a store"),
        (["--store", "http://[::1:80"], "'http://[::1:80' is not the address of a store"),
        (["--store", "http://127.0.0.1:1", "--key", ""], "--key is empty"),
        (["--store", "http://127.0.0.1:1", "--run", ""], "--run is empty"),
        (
            ["--store", "http://127.0.0.1:1", "--n-runners", "0"],
            "Invalid value for '--n-runners': 0 is not in the range x>=1",
        ),
        (["--store", "http://127.0.0.1:1", "--set", "agent=solving:nobody"], "module 'solving' has no 'nobody'"),
        ([], "Missing option '--store'"),
    ],
    ids=str,
)
def test_wrong_argument_is_named_with_status_2(
    folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    clean = dict.fromkeys(os.environ.keys() - environment().keys())
    sys.modules.pop("solving", None)  # of another folder
    done = CliRunner(env=clean).invoke(agl, ["worker", "config.yaml", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
