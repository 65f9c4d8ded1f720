"""Runs a training in a process of its own, and tells what came of it and what is left of it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil


@dataclass(slots=True)
class Ran:
    """What came of a training."""

    status: int
    """The exit status; negative for a signal."""
    output: str = field(repr=False)
    left: list[str]
    """What still ran long after its end, but for what it tells that it leaves. Ray's agents look five times, every two
    seconds, before they end."""
    cwd: Path
    """Where it ran."""

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What each step has measured."""
        return [each for each in self.told("STEP") if each["step"] is not None]

    @property
    def before(self) -> dict[str, Any]:
        """What was measured before the first step."""
        return next(each for each in self.told("STEP") if each["step"] is None and "val/n_rollouts" in each)

    @property
    def end(self) -> dict[str, Any]:
        """How the run ended."""
        ends = self.told("END")
        assert len(ends) == 1, self.output[-5000:]
        return ends[0]

    def told(self, what: str) -> list[Any]:
        """Return what the script printed under a word."""
        return [json.loads(line.removeprefix(what)) for line in self.output.splitlines() if line.startswith(f"{what} ")]


def train(*arguments: str, cwd: Path, script: str = "letters.py", seconds: float = 600) -> Ran:
    """Run a script of this folder; after so many seconds it is killed."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    # More threads only wait for each other where a model is this small.
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    with (cwd / "printed").open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments],
            cwd=cwd,
            env={**os.environ, **quiet, "LIGHTNING_TEST_MARK": mark},
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = process.wait(seconds)
    finally:
        process.kill()
        process.wait()
        output = (cwd / "printed").read_text()
        print(output[-5000:])
    return Ran(status, output, _left(mark, output), cwd)


def _left(mark: str, told: str, seconds: float = 90.0) -> list[str]:
    """Return what is left of a training after a while: its processes have its mark in their environment."""
    deadline = time.monotonic() + seconds
    while True:
        left = [each for each in psutil.process_iter() if _has_mark(each, mark) and f"LEAVES {each.pid}\n" not in told]
        if not left or time.monotonic() > deadline:
            return [f"{each.pid} {each.name()}" for each in left]
        time.sleep(0.5)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("LIGHTNING_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
