"""Real processes of trainings that were killed, and of others that go on; `e2e` has one that Ray has started."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lightning_verl.leftovers import VARIABLE, end_leftovers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc"),
    pytest.mark.timeout(120),
]

TRAINER = """
import os, subprocess, sys
from lightning_verl.leftovers import worker_variables
marked = dict(os.environ, **worker_variables())
print(subprocess.Popen(["sleep", "600"], env=marked, start_new_session=True).pid, flush=True)
sys.stdin.read()
"""

TITLED = """
import os, subprocess, sys
from lightning_verl.leftovers import worker_variables
program = "import os, time; from ray._raylet import setproctitle; setproctitle('VLLM::EngineCore' + ' ' * 500); "
program += "print(os.getpid(), flush=True); time.sleep(600)"
marked = dict(os.environ, **worker_variables())
subprocess.Popen([sys.executable, "-c", program], env=marked, start_new_session=True)
sys.stdin.read()
"""


@contextmanager
def training(program: str = TRAINER) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run a process that trains; give it, and a handle of the process that it has started."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        handle = os.pidfd_open(pid)
        try:
            yield trainer, handle
        finally:
            trainer.kill()
            if not has_ended(handle, seconds=0):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def has_ended(handle: int, *, seconds: float) -> bool:
    waited = select.poll()
    waited.register(handle, select.POLLIN)
    return bool(waited.poll(seconds * 1000))


@pytest.mark.parametrize("program", [TRAINER, TITLED])
def test_what_a_killed_training_has_left_is_ended_and_what_a_living_one_has_stays(program: str) -> None:
    with training(program) as (killed, left), training() as (_, used):
        dying = os.pidfd_open(killed.pid)
        killed.send_signal(signal.SIGKILL)
        assert has_ended(dying, seconds=20), "and is not waited for: it is a zombie"
        os.close(dying)
        end_leftovers()
        assert has_ended(left, seconds=20)
        assert not has_ended(used, seconds=0)


@pytest.mark.parametrize("told", ["other-machine/pid:[1]/1-1", "", "nonsense"])
def test_what_is_not_ours_beyond_doubt_stays(told: str) -> None:
    with subprocess.Popen(["sleep", "600"], env={VARIABLE: told, "PATH": os.environ["PATH"]}) as other:
        try:
            end_leftovers()
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("refusal", [PermissionError, FileNotFoundError], ids=["refused", "hidden"])
def test_a_training_that_the_system_does_not_show_counts_as_living(
    refusal: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with training() as (trainer, used):
        hidden, read_text = Path(f"/proc/{trainer.pid}/stat"), Path.read_text

        def read(path: Path) -> str:
            if path == hidden:
                raise refusal(str(path))
            return read_text(path)

        monkeypatch.setattr(Path, "read_text", read)
        end_leftovers()
        assert not has_ended(used, seconds=1)


def test_a_part_of_a_training_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with training() as (killed, _):
        killed.kill()
        killed.wait()
        monkeypatch.setenv(VARIABLE, "a trainer")
        assert end_leftovers() == []
