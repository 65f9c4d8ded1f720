"""Ctrl-C: whatever an agent or an algorithm does, the process ends soon, with what was found so far."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

LIMIT_SECONDS = 30.0
"""2 s are promised; the rest is for a busy machine."""

EXIT_SECONDS = 20.0
"""How long the interpreter may take after `fit` to take itself apart: that is up to it, and to the machine."""

AGENTS = '''
import asyncio, json, os, pathlib, shutil, signal, subprocess, sys, tempfile, threading, time

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm, algo, run_batch

# Who runs tests in the background may have switched the signal off.
signal.signal(signal.SIGINT, signal.default_int_handler)

BEST = {"main_prompt": PromptTemplate(template="the best so far")}


def ready():
    os.write(1, b"ready\\n")  # in one piece, from several threads


@rollout
async def wait(task):
    """Does what its task says, and never ends."""
    if task == "at once":
        return 1.0
    ready()
    while True:
        try:
            await (asyncio.to_thread(time.sleep, 60) if task == "in a thread" else asyncio.sleep(60))
        except asyncio.CancelledError:
            if task != "refuse":
                raise
            print("refused", flush=True)


@rollout
def block(task):
    ready()
    time.sleep(60)


@rollout
async def hog(task):
    """Blocks the event loop, and with it everything else."""
    interrupt = signal.getsignal(signal.SIGINT)

    def note(number, frame):
        interrupt(number, frame)
        os.write(1, b"noted\\n")

    signal.signal(signal.SIGINT, note)
    ready()
    time.sleep(60)


@algo
async def search(store, train_dataset, report):
    report({"reward": 0.5}, step=1, best_resources=BEST)
    await run_batch(store, train_dataset, mode="train")


class Refuse(Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        self.set_initial_resources({"main_prompt": PromptTemplate(template="the first")})
        first = await self.get_store().add_resources(self.get_initial_resources())
        await run_batch(self.get_store(), train_dataset, mode="train", resources_id=first.resources_id)
        self.report({"reward": 0.5}, step=1, best_resources=BEST)
        ready()
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass


refuse = Refuse()


@algo
def block_in_its_thread(report):
    report({"reward": 0.5}, step=1, best_resources=BEST)
    ready()
    time.sleep(60)


class Endpoint:
    """Starts a process and makes a folder, as the quickstart's local model might."""

    def lightning_run_start(self):
        self.folder = tempfile.mkdtemp()
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("child", self.process.pid, flush=True)

    def lightning_run_end(self, status):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)
        print("end", status, flush=True)


def main(agent, algorithm, *tasks):
    trainer = Trainer(algorithm=globals()[algorithm], n_runners=4, hooks=[Endpoint()])
    result = trainer.fit(globals()[agent], list(tasks) or None)
    print("result", json.dumps([result.status, result.metrics, result.best_resources["main_prompt"].template]))
    if result.comparison is not None:
        print("before", result.comparison.before.mean)


if __name__ == "__main__":
    main(*sys.argv[1:])
'''


CONFIG = """
agent: interrupted:wait
algorithm: interrupted:search
n_runners: 2
train_dataset: [sleep, in a thread]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "interrupted.py").write_text(AGENTS)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


@contextmanager
def started(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Run Python with arguments, as the leader of a group of processes of its own."""
    with (
        (folder / "errors.txt").open("w") as errors,
        subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_until(process: "subprocess.Popen[str]", line: str, *, times: int = 1) -> list[str]:
    """Return the lines up to the one that is looked for."""
    assert process.stdout is not None
    lines: list[str] = []
    while lines.count(line) < times:
        read = process.stdout.readline()
        assert read, f"it ended after {lines}"
        lines.append(read.rstrip("\n"))
    return lines


def interrupt(process: "subprocess.Popen[str]", number: int = signal.SIGINT) -> tuple[list[str], float]:
    """Send the signal and wait for the end; return the lines that were printed, and the seconds until the last one."""
    assert process.stdout is not None
    sent = time.monotonic()
    process.send_signal(number)
    lines, seconds = [], 0.0
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        seconds = time.monotonic() - sent
    process.wait()
    assert time.monotonic() - sent < seconds + EXIT_SECONDS
    return [line for line in lines if line != "refused"], seconds


def is_soon_gone(group: int) -> bool:
    """Whether a process group is empty soon: a system may take a moment to forget the dead."""
    deadline = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def assert_nothing_is_left(process: "subprocess.Popen[str]", lines: list[str], folder: Path) -> None:
    (child,) = [int(line.removeprefix("child ")) for line in lines if line.startswith("child ")]
    assert not psutil.pid_exists(child)
    assert is_soon_gone(process.pid)
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("agent", "algorithm", "tasks"),
    [
        pytest.param("wait", "search", ["sleep", "in a thread", "refuse"], id="async agents"),
        pytest.param("block", "search", ["a", "b"], id="sync agents"),
        pytest.param("wait", "refuse", ["at once"], id="algorithm that refuses"),
        pytest.param("wait", "block_in_its_thread", [], id="sync algorithm"),
    ],
)
def test_fit_ends_in_time_with_the_best_so_far(folder: Path, agent: str, algorithm: str, tasks: list[str]) -> None:
    with started(folder, "interrupted.py", agent, algorithm, *tasks) as process:
        lines = read_until(process, "ready", times=len(tasks) or 1)
        rest, seconds = interrupt(process)
    assert [line for line in rest if line != "refused"] == [
        "end interrupted",
        'result ["interrupted", {"reward": 0.5}, "the best so far"]',
        *(["before 1.0"] if algorithm == "refuse" else []),
    ]
    assert process.returncode == 0
    assert seconds < LIMIT_SECONDS
    assert_nothing_is_left(process, lines, folder)


def test_second_interrupt_ends_an_async_agent_that_blocks_the_loop(folder: Path) -> None:
    with started(folder, "interrupted.py", "hog", "search", "a", "b", "c", "d", "e") as process:
        lines = read_until(process, "ready")
        process.send_signal(signal.SIGINT)
        read_until(process, "noted")  # but nothing can act on it
        rest, seconds = interrupt(process)
    assert rest == ["end interrupted", 'result ["interrupted", {"reward": 0.5}, "the best so far"]']
    assert seconds < LIMIT_SECONDS
    assert_nothing_is_left(process, lines, folder)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_exits_with_the_signal_and_the_summary(folder: Path, number: int, status: int) -> None:
    command = ["-m", "lightning_core", "train", "config.yaml", "--output", "result.json"]
    with started(folder, *command) as process:
        read_until(process, "ready", times=2)
        rest, seconds = interrupt(process, number)
    assert process.returncode == status
    assert seconds < LIMIT_SECONDS
    text = "\n".join(rest)
    assert re.search(r"^interrupted in .* s: 0 rollouts succeeded", text, re.M)
    assert re.search(r"^interrupted in \d\.\d s: 0 rollouts succeeded, 2 unfinished$", text, re.M)
    assert "  reward: 0.5\n" in text
    assert "main_prompt, the best found:\nthe best so far\n" in text
    record = json.loads((folder / "result.json").read_text())
    assert (record["status"], record["metrics"]) == ("interrupted", {"reward": 0.5})


def test_termination_is_an_interrupt_where_a_shell_has_switched_that_off(folder: Path) -> None:
    shell = "signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    # The module of the agents switches it on again.
    (folder / "interrupted.py").write_text(
        AGENTS.replace("signal.signal(signal.SIGINT, signal.default_int_handler)", "")
    )
    command = ["-c", f"import os, signal, sys; {shell}", "-m", "lightning_core", "train", "config.yaml"]
    with started(folder, *command) as process:
        read_until(process, "ready", times=2)
        rest, seconds = interrupt(process, signal.SIGTERM)
    assert (process.returncode, seconds < LIMIT_SECONDS) == (143, True)
    assert "main_prompt, the best found:\nthe best so far\n" in "\n".join(rest)


def test_interrupt_before_the_run_exits_with_130_too(folder: Path) -> None:
    (folder / "slow_agent.py").write_text("import interrupted\n\ninterrupted.ready()\ninterrupted.time.sleep(60)\n")
    (folder / "config.yaml").write_text("agent: slow_agent:solve\nalgorithm: baseline\n")
    with started(folder, "-m", "lightning_core", "train", "config.yaml") as process:
        read_until(process, "ready")
        sent = time.monotonic()
        interrupt(process)
    assert process.returncode == 130
    assert time.monotonic() - sent < LIMIT_SECONDS
