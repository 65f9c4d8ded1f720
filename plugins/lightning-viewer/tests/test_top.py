"""A run that goes on elsewhere, in the terminal."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lightning_http.server import LightningStoreServer
from lightning_viewer.aggregates import Filter
from lightning_viewer.commands import top
from lightning_viewer.live import opened
from lightning_viewer.top import Look, looks_at
from live_stores import KEY, SECONDS, trained, work

from lightning_core import InMemoryLightningStore, Trainer, rollout
from lightning_core.types import EnqueueRolloutRequest

WATCH = "from lightning_viewer.commands import top; top()"


@rollout
async def looks_at_itself(task: dict[str, Any]) -> float:
    """Looks at the run that it is part of, while that goes on, in another process."""
    if task["n"] == 2:
        arguments = [sys.executable, "-c", WATCH, "--runs-dir", task["runs"]]
        done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        (Path(task["runs"]).parent / "shown.txt").write_text(done.stdout)
    if task["n"] == 1:
        raise ValueError("cannot add 17 apples")
    return 1.0


def looked(*arguments: str) -> Result:
    return CliRunner().invoke(top, list(arguments))


def test_a_run_in_another_process_is_shown_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    trainer = Trainer(algorithm="baseline", run_dir=root, n_runners=1)
    result = trainer.fit(looks_at_itself, [{"n": number, "runs": str(root)} for number in range(4)])
    asyncio.run(trainer.store.aclose())
    assert (result.status, result.rollouts.succeeded, result.rollouts.failed) == ("succeeded", 3, 1)
    shown = (tmp_path / "shown.txt").read_text()
    assert shown.startswith(f"{result.run_id}  running\n")
    [counts] = re.findall(r"^rollouts +(.*)$", shown, re.M)
    assert sorted(counts.strip().split(", ")) == ["1 failed", "1 preparing", "1 queuing", "1 succeeded"]
    assert "1x ValueError: cannot add 17 apples" in shown
    assert re.search(r"^\S+ +busy +ro-\w+ +\S+ \S+ ago *$", shown, re.M)


def test_a_run_that_has_ended_is_shown_once(tmp_path: Path) -> None:
    asyncio.run(trained(looks_at_itself, tmp_path, [{"n": 0}]))
    done = looked("--runs-dir", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].endswith("  succeeded")
    assert "train_reward  1" in done.output
    assert "rollouts/s" not in done.output


async def test_the_run_of_a_server_is_shown() -> None:
    store = InMemoryLightningStore(run_id="run-1")
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=1) for _ in range(3)])
    await store.dequeue_rollout(worker_id="worker-7")
    async with LightningStoreServer(store, port=0) as server:
        done = await asyncio.to_thread(looked, "--store", server.url)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].strip() == "run-1"
    assert "2 queuing, 1 preparing" in done.output
    assert "worker-7" in done.output


def test_a_server_that_is_not_there_is_said_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    done = looked("--store", "http://127.0.0.1:9")
    assert "the store at http://127.0.0.1:9 was out of reach" in str(done.exception)
    assert not [record for record in caplog.records if record.exc_info or record.name == "asyncio"]


async def test_a_server_that_was_away_is_followed_again(tmp_path: Path) -> None:
    store = InMemoryLightningStore(run_id="run-1")
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    server = LightningStoreServer(store, key=KEY)
    await server.start()

    async def until(looks: AsyncGenerator[Look], succeeded: int) -> Look:
        async with asyncio.timeout(SECONDS):
            async for look in looks:
                if len(look.aggregates.find(Filter(status="succeeded"))) == succeeded:
                    return look
        raise AssertionError("it looks no more")

    async with opened(None, server.url, root=tmp_path, key=KEY) as live, aclosing(looks_at(live)) as looks:
        await until(looks, 0)
        await work(store, 1.0)
        await until(looks, 1)
        later = asyncio.create_task(until(looks, 2))
        await server.stop()
        await work(store, 1.0)
        await server.start()
        assert (await later).failure is None
    await server.stop()


def test_ctrl_c_ends_it_and_gives_the_terminal_back(tmp_path: Path) -> None:
    started, released = threading.Event(), threading.Event()
    ours, theirs = pty.openpty()

    @rollout
    def waits(task: int) -> float:
        started.set()
        released.wait(60)
        return 1.0

    trainer = Trainer(algorithm="baseline", run_dir=tmp_path, n_runners=1)
    running = threading.Thread(target=trainer.fit, args=(waits, [1]))
    running.start()
    try:
        assert started.wait(60)
        command = [sys.executable, "-c", WATCH, "--runs-dir", str(tmp_path)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            while b"heartbeat" not in shown and b"rollouts" not in shown:
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # Linux says so when the other end is closed
                while data := os.read(ours, 65536):
                    shown += data
            assert process.wait(timeout=60) != 0
    finally:
        os.close(ours)
        released.set()
        running.join()
        asyncio.run(trainer.store.aclose())
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    assert b"Traceback" not in shown
