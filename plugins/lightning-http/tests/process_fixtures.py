import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import psutil
import pytest

AGENTS = '''
import asyncio
import logging
import os
import signal
import threading
import time
from pathlib import Path

from lightning_core import emit_message, emit_reward, rollout
from lightning_core.agent import LitAgent
from lightning_core.errors import NeedsLegacy
from lightning_core.tracer import OtelTracer


class OlderTracer(OtelTracer):
    def trace_context(self, name=None, **ids):
        raise NeedsLegacy("OlderTracer needs lightning-legacy")


@rollout
def double(task):
    emit_message(f"in {os.getpid()}")
    return 2.0 * task


meeting = asyncio.Barrier(2)


@rollout
async def meet(task):
    await meeting.wait()
    return float(os.getpid())


@rollout
def die_once(task):
    """Die where nobody has died before."""
    flag = Path(task)
    if flag.exists():
        return 1.0
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)


@rollout
def die(task):
    """Die after a reward, which is none."""
    emit_reward(5.0)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@rollout
def fork_and_die_once(task):
    """Leave behind a process that has all that this one had, say so, and die where nobody has died before."""
    flag = Path(task)
    if flag.exists():
        return 1.0
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
        os._exit(0)
    flag.write_text(str(forked))
    logger.warning("forked %d", forked)
    os.kill(os.getpid(), signal.SIGKILL)


@rollout
async def hang(task):
    """Say that it is here, by making a file, and never end."""
    Path(task).touch()
    await asyncio.Event().wait()


@rollout
def block(task):
    Path(task).touch()
    time.sleep(600)


@rollout
async def hog(task):
    """Block the event loop."""
    Path(task).touch()
    time.sleep(600)


@rollout
async def variable(task):
    return float(os.environ["AGL_TEST_VARIABLE"])


@rollout
async def key(task):
    return float(sum(name in os.environ for name in ("AGL_KEY", "AGL_RUNNER_KEY")))


class Adding(LitAgent):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def rollout(self, task, resources, rollout):
        return float(task + self.number)


class Locked(Adding):
    """Cannot be pickled."""

    def __init__(self, number):
        super().__init__(number)
        self.lock = threading.Lock()


locked = Locked(100)


class Tally:
    """Write down which hooks are called, and where."""

    def __init__(self, folder):
        self.folder = folder

    def note(self, hook):
        with open(Path(self.folder, hook), "a") as file:
            file.write(f"{os.getpid()}\\n")

    def lightning_run_start(self):
        self.note("run_start")

    def lightning_rollout_start(self, rollout, attempt, agent, runner):
        self.note("rollout_start")

    def lightning_trace_end(self):
        self.note("trace_end")

    def lightning_rollout_end(self, rollout, attempt, reward, spans):
        self.note(f"rollout_end_{reward}_{len(spans)}")


class StayingTally(Tally):
    stays_with_algorithm = True


class Failing:
    """Fail at what is told of rollouts; and of the run, to see that this is told once."""

    def lightning_rollout_start(self, rollout, attempt, agent, runner):
        raise LookupError(f"no {rollout.input}") if rollout.input == 2 else OSError("no")

    def lightning_rollout_end(self, rollout, attempt, agent, runner, reward, spans):
        if reward == 4.0:
            raise ValueError(f"reward {reward}, spans {len(spans)}, {attempt.status}, {rollout.status}")

    def lightning_run_end(self, run_id, status):
        raise RuntimeError(status)


class StayingFailing(Failing):
    stays_with_algorithm = True


logger = logging.getLogger(__name__)


@rollout
def log(task):
    """Log what others may want to see, and what they may not."""
    logger.debug("not shown")
    logger.info("lightning.told task=%s number=%d; in a thread", Path(task), 3)
    try:
        raise KeyError("api_key=abcdefghijk")
    except KeyError:
        logger.warning("it went wrong", exc_info=True)
    return 1.0


@rollout
def log_and_die_once(task):
    logger.warning("about to go on")
    logger.warning("about to go on")
    return die_once(task)


@rollout
def log_from_a_fork(task):
    forked = os.fork()
    if forked == 0:
        try:
            logger.warning("from a fork")
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    logger.warning("from here")
    return 1.0


def grade(task, result):
    return {"quality": result * 10, "other": 1.0}
'''


@pytest.fixture(scope="session")
def process_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A module `process_agents` that other processes can import."""
    folder = tmp_path_factory.mktemp("agents")
    (folder / "process_agents.py").write_text(AGENTS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("process_agents", None)


@pytest.fixture
def agents(process_agents: Path) -> ModuleType:
    """That module."""
    return importlib.import_module("process_agents")


def environment(**variables: str) -> dict[str, str]:
    """The variables of this process but for ours, and these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AGL_")} | variables


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `agl serve store`, and return it with the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "lightning_core", "store", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("store of run "), process.communicate()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def left_over() -> list[psutil.Process]:
    """Return the processes below this one, but for those that Python keeps for its own."""
    children = {each: " ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)}
    servers = {each.pid for each, command in children.items() if "forkserver" in command}
    servers -= {each.pid for each in children if each.ppid() in servers}  # which have its command line
    return [each for each, command in children.items() if "tracker" not in command and each.pid not in servers]


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Fail a test that leaves a process behind."""
    before = left_over()
    yield
    assert [each for each in left_over() if each not in before] == []


def still_alive(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Return which of some processes run after some seconds; sooner when none does. Dead ones need not be reaped."""
    deadline = time.monotonic() + seconds
    while alive := [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.01)
    return []
