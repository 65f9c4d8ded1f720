"""What is left of a run with runner processes when its main process is interrupted or killed: nothing that runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from process_fixtures import environment, still_alive

INTERRUPT_SECONDS = 30.0
"""2 s are promised; the rest is for a busy machine, and for the interpreter to end."""

KILLED_SECONDS = 20.0
"""How long runners may outlive the process that started them: 1 s, and the rest as above."""

AGENT = """
import asyncio, os, time
from lightning_core import rollout


def here():
    os.write(1, f"here {os.getpid()}\\n".encode())


async def in_the_loop(task):
    here()
    if task == "hog":
        time.sleep(600)
    await asyncio.Event().wait()


@rollout
def never_end(task):
    if task != "block":
        return in_the_loop(task)
    here()
    time.sleep(600)
"""

CONFIG = """
agent: waiting:never_end
algorithm: baseline
strategy: {name: processes}
n_runners: 3
train_dataset: [wait, hog, block]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "waiting.py").write_text(AGENT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


@contextmanager
def training(folder: Path, *options: str) -> "Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]":
    """Run `agl train` until all runners work; give it, and all processes below it."""
    with (
        (folder / "errors.txt").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "lightning_core", "train", "config.yaml", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=environment(),
            start_new_session=True,
            # Who runs tests in the background may have switched the signal off.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            runners = 0
            while runners < 3:
                line = process.stdout.readline()
                assert line, (folder / "errors.txt").read_text()
                runners += line.startswith("here ")
            yield process, psutil.Process(process.pid).children(recursive=True)
        finally:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                child.kill()
            process.kill()


def test_interrupted_run_exits_with_130_in_time_gives_its_rollouts_back_and_leaves_nothing(folder: Path):
    with training(folder, "--output", "result.json") as (process, children):
        sent = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.wait()
        seconds = time.monotonic() - sent
    assert process.returncode == 130
    assert seconds < INTERRUPT_SECONDS
    assert still_alive(children, seconds=KILLED_SECONDS) == []
    assert "Traceback" not in (folder / "errors.txt").read_text()
    record = json.loads((folder / "result.json").read_text())
    assert (record["status"], record["rollouts"]["unfinished"]) == ("interrupted", 3)


def test_runners_end_by_themselves_when_the_main_process_is_killed(folder: Path):
    with training(folder) as (process, children):
        assert len(children) >= 3
        process.kill()
        process.wait()
        assert still_alive(children, seconds=KILLED_SECONDS) == []


def test_runners_that_still_import_end_when_the_main_process_is_killed(folder: Path):
    slow = "import os, time\nos.write(1, f'here {os.getpid()}\\n'.encode())\n"
    slow += "import multiprocessing\nif multiprocessing.parent_process(): time.sleep(600)\n"
    (folder / "waiting.py").write_text(slow + AGENT)
    with training(folder) as (process, children):
        process.kill()
        process.wait()
        assert still_alive(children, seconds=KILLED_SECONDS) == []
