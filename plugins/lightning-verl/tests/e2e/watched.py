"""Runs a training in a process of its own, and measures what it takes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SCRIPT = Path(__file__).with_name("letters.py")


@dataclass(slots=True)
class Ran:
    """What came of a training."""

    status: int
    """The exit status; negative for a signal."""
    steps: list[dict[str, Any]]
    """What each step has measured."""
    before: dict[str, Any] | None
    """What was measured before the first step."""
    end: dict[str, Any] | None
    """How the run ended, where it came to its end."""
    output: str = field(repr=False)
    seconds: float
    peak_gib: float
    """The most memory that the process and all that it started held together; what they share counts once."""
    left: list[str]
    """What still ran ten seconds after its end."""


def train(
    *arguments: str,
    cwd: Path,
    seconds: float = 600,
    until: Callable[[str], bool] | None = None,
    with_signal: int = 0,
) -> Ran:
    """Run `letters.py`.

    Args:
        arguments: Its own.
        cwd: Where it runs.
        seconds: The longest it may take; then it is killed.
        until: Is given what was printed so far; True sends the signal.
        with_signal: What `until` sends.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, "LIGHTNING_TEST_MARK": mark, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            cwd=cwd,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                peak = max(peak, _held_by(process.pid))
                text = _read(printed)
                if time.monotonic() - began > seconds:
                    raise TimeoutError(f"still running after {seconds:g} s:\n{text[-5000:]}")
                if until is not None and until(text):
                    process.send_signal(with_signal)
                    until = None
                time.sleep(0.5)
        finally:
            process.kill()
            process.wait()
        output = _read(printed)
    took = time.monotonic() - began
    told = [json.loads(line.removeprefix("STEP ")) for line in output.splitlines() if line.startswith("STEP ")]
    before = next((each for each in told if each["step"] is None and "val/n_rollouts" in each), None)
    steps = [each for each in told if each["step"] is not None]
    end = next((json.loads(line.removeprefix("END ")) for line in output.splitlines() if line.startswith("END ")), None)
    return Ran(process.returncode, steps, before, end, output, took, peak / 2**30, _left(mark))


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def _held_by(pid: int) -> int:
    """Return the bytes that a process and its descendants hold."""
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_pss(each.pid) for each in tree)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _left(mark: str, seconds: float = 10.0) -> list[str]:
    """Return what is left of a training after a while: its processes have its mark in their environment."""
    deadline = time.monotonic() + seconds
    while True:
        left = [" ".join(each.cmdline())[:200] for each in psutil.process_iter() if _has_mark(each, mark)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("LIGHTNING_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
