"""The store by its name: `agl serve store`, and a run whose store it is. No password is written down or shown."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from lightning_http import LightningStoreClient
from lightning_mongo.testing import Mongod, free_port

from lightning_core import cli

PASSWORD = "hunter2-Zq"
NOBODY = f"mongodb://me:{PASSWORD}@127.0.0.1:{{port}}"
MONGO = ("--backend", "mongo")

pytestmark = pytest.mark.slow


def agl(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "lightning_core", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=cwd,
        env=_environment(variables),
        check=False,
    )


def _environment(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AGL_")} | variables


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[str]:
    """Run `agl serve store`, and return the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_core", "store", "--port", "0", "--drain-seconds", "0", *MONGO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(variables),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("store of run "), process.communicate()
        yield line.split()[-1]
    finally:
        process.terminate()
        said = process.communicate(timeout=200)
        assert (process.returncode, said[1]) == (0, "")


def test_two_servers_of_one_partition_share_its_run_whichever_way_they_have_its_address(
    standalone: Mongod, partition: str
) -> None:
    async def use(one: str, other: str) -> None:
        async with LightningStoreClient(one) as first, LightningStoreClient(other) as second:
            waiting = asyncio.create_task(second.dequeue_rollout("w", wait_seconds=None))
            await first.enqueue_rollout("a")
            claimed = await asyncio.wait_for(waiting, 60)
            assert claimed is not None
            assert claimed.input == "a"
            assert first.run_id == second.run_id

    options = ("--partition", partition, "--set", "poll_milliseconds=10")
    by_option, by_variable = ("--mongo-uri", standalone.uri), {"AGL_STORE_URI": standalone.uri}
    with serving(*options, *by_option) as one, serving(*options, **by_variable) as other:
        asyncio.run(use(one, other))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mongo-uri", NOBODY, "--set", "connect_seconds=0.2"], "no MongoDB answers"),
        (["--mongo-uri", f"mongodb://me:{PASSWORD}@db:port"], "is not the address of a MongoDB"),
        (["--set", "client_options={maxPoolSize: x}"], "The value of maxPoolSize must be an integer"),
        (["--uri", ""], "--uri is empty; give a value, or leave --uri out"),
        (["--partition", "a/b"], "partition_id is 'a/b'"),
        (["--set", f"password={PASSWORD}"], "has no option 'password'"),
        (["--set", PASSWORD], "--set takes KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line_without_the_password(arguments: list[str], said: str) -> None:
    given = [each.replace("{port}", str(free_port())) for each in arguments]
    done = CliRunner().invoke(cli.agl, ["store", "--port", "0", *MONGO, *given])
    assert done.exit_code == 2, done.output
    assert said in done.stderr.splitlines()[-1]
    assert PASSWORD not in done.output


def test_a_run_writes_down_its_store_without_the_password(needs_mongod: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from lightning_core import rollout\n\n\n@rollout\ndef agent(task: int) -> float:\n    return float(task)\n"
    )
    (tmp_path / "tasks.json").write_text("[1, 2, 3]")
    with Mongod(user=("me", PASSWORD)) as mongod:
        uri = mongod.uri.replace("://", f"://me:{PASSWORD}@")
        config = "agent: program:agent\nalgorithm: baseline\ntrain_dataset: tasks.json\n"
        (tmp_path / "config.yaml").write_text(f"{config}store: {{name: mongo, uri: '{uri}'}}\n")
        (tmp_path / "bare.yaml").write_text(config)
        set_on_top = ("--set", "store.name=mongo", "--set", f"store.uri={uri}")
        for arguments in (("config.yaml",), ("bare.yaml", *set_on_top)):
            trained = agl("train", *arguments, cwd=tmp_path)
            assert trained.returncode == 0, trained.stderr
            assert PASSWORD not in trained.stdout + trained.stderr
        folders = list((tmp_path / "runs").iterdir())
        assert len(folders) == 2
        for folder in folders:
            shown = CliRunner().invoke(cli.agl, ["show", folder.name, "--runs-dir", str(tmp_path / "runs")])
            assert shown.exit_code == 0, shown.output
            written = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
            assert "mongodb://***@127.0.0.1" in written
            assert PASSWORD not in shown.output + written
