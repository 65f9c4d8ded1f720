"""The whole example, run as a person runs it: it learns from rewards."""

import os
import re
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


def run(*options: str, runs: Path) -> str:
    """Run the example to its end in the folder of all runs, and check that nothing is left of it; return its output."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "AGL_RUNS_DIR": str(runs), MARK: mark}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        cwd=runs,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout[-5000:]
    assert left_of(mark) == []
    return ran.stdout


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


PAIRED = r"problem by problem:\s+\S+ → \S+ \((\S+), 95% (\S+)\.\.(\S+), n=240\)"


def test_rewards_raise_the_accuracy_on_pairs_of_numbers_that_were_never_seen(tmp_path: Path) -> None:
    printed = run("--steps=15", runs=tmp_path)
    (well_formed,) = numbers_of(r"well-formed calls on held-out problems: ([\d.]+)", printed)
    assert well_formed >= 0.9
    gain, low, _ = numbers_of(PAIRED, printed)
    assert gain >= 0.1, "with half the steps of the example"
    assert low > 0
    (gib,) = numbers_of(r"and ([\d.]+) GiB of memory at most", printed)
    assert gib < 6
    (folder,) = runs_in(tmp_path)
    assert folder.manifest().outcome == "succeeded"
    assert (folder.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = re.search(r"the model  (\S+)", printed)
    assert model is not None
    assert (Path(model[1]) / "config.json").is_file()
