"""Stages, each a process of its own with a time limit: run, watched, ended with all that they have started."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]

MARK = "LIGHTNING_VERL_CHECK"
"""The variable by which a stage's processes are known, whoever is their parent: it begins with the stage's mark."""
_LOOK_SECONDS = 1.0
_END_SECONDS = 30.0
"""How long what a stage has started may take to end after it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a stage."""

    name: str
    status: Literal["ok", "FAILED", "skipped"]
    seconds: float
    memory_bytes: int
    """The most that it held: on the GPU; without one, of the machine's memory."""
    said: str
    """What it has shown; or what was expected, what was got, and where the log is."""

    def __str__(self) -> str:
        gib = f"{self.memory_bytes / 2**30:.1f} GiB"
        return f"{self.name:16} {self.status:8} {self.seconds:5.0f} s  {gib:>9}  {self.said}"


def run(name: str, command: Sequence[str], folder: Path, *, limit_seconds: float, device: str) -> Result:
    """Run a stage to its end, or to its limit. Afterwards nothing of it runs.

    Args:
        name: The stage's.
        command: What to run; it writes `NAME.json` in the folder: `{"shown": ...}`, or `{"expected": ..., "got": ...}`.
        folder: Where it runs; its output goes to `NAME.log`.
        limit_seconds: The most that it may take.
        device: `cpu` or `cuda`: whose memory counts.
    """
    log, written, mark = folder / f"{name}.log", folder / f"{name}.json", f"{os.getpid()}-{name}"
    before, peak, begun = memory(device, mark), 0, time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = None
        while status is None and time.monotonic() - begun < limit_seconds:
            try:
                status = process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                peak = max(peak, memory(device, mark) - before)
        seconds = time.monotonic() - begun
        left = [] if status is None else left_of(mark)
    finally:
        end(mark)
        process.wait()
    told = json.loads(written.read_text()) if written.exists() else {}
    if status is None:
        told = {"expected": f"an end within {limit_seconds:.0f} s", "got": "none, so it was ended"}
    elif not told:
        told = {"expected": "a result", "got": f"exit status {status}: {_last_line(log)}"}
    elif left and "shown" in told:
        told = {"expected": "no process left", "got": ", ".join(left)}
    if "shown" in told:
        return Result(name, "ok", seconds, peak, told["shown"])
    said = f"expected {told['expected']}; got {told['got']}; log: {log}"
    return Result(name, "FAILED", seconds, peak, said)


def processes(mark: str) -> list[psutil.Process]:
    """Return the processes that have a mark, without those that have ended and those that are not ours to see."""
    return [each for each in psutil.process_iter() if _has_mark(each, mark)]


def left_of(mark: str, seconds: float = _END_SECONDS) -> list[str]:
    """Return what still runs after a while of what has a mark, without this process."""
    deadline = time.monotonic() + seconds
    while True:
        left = [_name(each) for each in processes(mark) if each.pid != os.getpid()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def end(mark: str, seconds: float = _END_SECONDS) -> None:
    """Kill all that has a mark.

    Raises:
        RuntimeError: When something does not end in time, such as a process that waits for a GPU's driver.
    """
    while found := processes(mark):  # one may have started another meanwhile
        for each in found:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(found, timeout=seconds)
        if left := [f"{each.pid} {_name(each)}" for each in alive if _has_mark(each, mark)]:
            raise RuntimeError(f"{', '.join(left)} was killed, and does not end")


def memory(device: str, mark: str) -> int:
    """Return how many bytes are in use: of all GPUs; on a processor, of the machine's memory by what has a mark."""
    if device == "cpu":
        return sum(map(_held, processes(mark)))
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return 0
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return sum(map(int, told.split())) * 2**20


def _held(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)  # what several processes share counts once
    except psutil.Error:
        return 0


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        # Ray's processes write their titles over a part of this, after which psutil reads no further.
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        return f"{MARK}={mark}".encode() in environment and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80] or str(process.name())
    except psutil.Error:
        return str(process.pid)


def _last_line(log: Path) -> str:
    lines = re.findall(r"[^\r\n]*\S[^\r\n]*", log.read_text(errors="replace"))
    return lines[-1].strip()[:300] if lines else "it said nothing"
