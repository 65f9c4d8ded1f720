"""Runs an example as a person does, and looks what it leaves behind; for tests."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_MARK = "LIGHTNING_TEST_MARK"


def run(script: Path | str, *options: str, runs: Path, status: int = 0) -> str:
    """Run a script to its end in the folder of all runs, and check that nothing is left of it; return its output."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    ran = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=runs,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "AGL_RUNS_DIR": str(runs),
            _MARK: mark,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ran.stdout)
    assert ran.returncode == status, ran.stdout[-5000:]
    assert _left_of(mark) == []
    return ran.stdout


def _left_of(mark: str, seconds: float = 20.0) -> list[str]:
    """Return what still runs, after a while, of the processes that have a mark in their environment."""
    deadline = time.monotonic() + seconds
    while (left := [each.name() for each in psutil.process_iter() if _has_mark(each, mark)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.2)
    return left


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, OSError):  # it has ended, or is somebody else's
        return False
