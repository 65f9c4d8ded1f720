"""The whole example, run as a person runs it: it learns from rewards, and from nothing else."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from lightning_core.runs.folder import runs_in

SCRIPT = Path(__file__).with_name("train.py")
MARK = "LIGHTNING_TEST_MARK"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: str, runs: Path, interrupt_at: str | None = None, status: int = 0) -> str:
    """Run a command, and check that nothing is left of it.

    Args:
        command: The command.
        runs: The folder of all runs; it runs there.
        interrupt_at: It is interrupted, as with Ctrl-C, when it has printed this.
        status: What it has to end with.

    Returns:
        What it printed.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "AGL_RUNS_DIR": str(runs), MARK: mark}
    printed = ""
    with subprocess.Popen(
        command,
        cwd=runs,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell lets programs in the background ignore Ctrl-C, and what these start does so, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                printed += line
                if interrupt_at is not None and interrupt_at in line:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = None
        finally:
            process.kill()
    print(printed)
    assert process.returncode == status, printed[-5000:]
    assert left_of(mark) == []
    return printed


def left_of(mark: str, seconds: float = 10.0) -> list[str]:
    """Return what still runs, after a while, of the processes that have a mark in their environment."""
    deadline = time.monotonic() + seconds
    while (left := [each.name() for each in psutil.process_iter() if has_mark(each, mark)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    return left


def has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):  # it has ended, or is somebody else's
        return False


def numbers_of(pattern: str, printed: str) -> list[float]:
    found = re.search(pattern, printed)
    assert found is not None, printed
    return [float(each) for each in found.groups()]


PAIRED = r"in pairs:\s+\S+ → \S+ \((\S+), 95% (\S+)\.\.(\S+), n=240\)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all runs are: the later ones take the model that was taught for the first."""
    return tmp_path_factory.mktemp("runs")


def test_rewards_raise_the_accuracy_on_numbers_that_were_never_seen(runs: Path) -> None:
    printed = run(sys.executable, str(SCRIPT), "--steps=20", runs=runs)
    (well_formed,) = numbers_of(r"well-formed calls on held-out problems: ([\d.]+)", printed)
    assert well_formed >= 0.9
    gain, low, _ = numbers_of(PAIRED, printed)
    assert gain >= 0.2
    assert low > 0
    (gib,) = numbers_of(r"and ([\d.]+) GiB of memory at most", printed)
    assert gib < 6
    (folder,) = runs_in(runs)
    assert folder.manifest().outcome == "succeeded"
    assert (folder.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = re.search(r"the model  (\S+)", printed)
    assert model is not None
    assert (Path(model[1]) / "config.json").is_file()


def test_a_coin_s_rewards_teach_nothing_and_an_interrupted_run_goes_on(runs: Path) -> None:
    interrupted = run(
        sys.executable, str(SCRIPT), "--steps=10", "--coin", runs=runs, interrupt_at=" step   2/10", status=130
    )
    command = re.search(r"go on with it: (.+)", interrupted)
    assert command is not None
    printed = run(*shlex.split(command[1]), runs=runs)
    assert "step  10/10" in printed
    _, low, _ = numbers_of(PAIRED, printed)
    assert low <= 0
