"""One process works on a run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.errors import RunFolderError
from lightning_core.runs.folder import RunLock

HOLD = """
import sys
from pathlib import Path
from lightning_core.runs.folder import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run-1").mkdir()
    return tmp_path / "run-1" / "lock"


def test_nobody_has_a_lock_that_was_let_go_of(path: Path) -> None:
    lock = RunLock(path)
    assert lock.owner() is None
    lock.take()
    assert re.fullmatch(r"this process, \d+", RunLock(path).owner() or "")
    with pytest.raises(RunFolderError, match="run run-1 is still going on in this process, "):
        RunLock(path).take()
    lock.release()
    lock.release()
    assert lock.owner() is None
    RunLock(path).take()
    RunLock._held[path.resolve()].release()


def test_another_process_has_it_until_it_is_killed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said = rf"process {holder.pid} on \S+, since \d{{4}}-\S+"
        assert re.fullmatch(said, RunLock(path).owner() or "")
        with pytest.raises(RunFolderError, match=rf"run run-1 is still going on in {said}; wait for its end, or stop"):
            RunLock(path).take()
        assert RunLock(path).owner() is not None  # to ask does not break it
        holder.kill()
    lock = RunLock(path)
    assert lock.owner() is None
    lock.take()
    lock.release()


def test_lock_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot write .*/gone/lock: No such file"):
        RunLock(tmp_path / "gone" / "lock").take()
