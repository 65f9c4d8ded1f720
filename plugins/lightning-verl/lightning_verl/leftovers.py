"""Processes that a killed training has left on this machine, where they hold its GPUs: the next one ends them."""

import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from lightning_core.concurrency import process_lives
from lightning_core.errors import ConfigError

logger = logging.getLogger(__name__)

VARIABLE = "AGL_VERL_TRAINER"
"""Names the process that trains, in the environment of every process that Ray starts for it, and of their children."""

_END_SECONDS = 30.0
_PROC = Path("/proc")


def worker_variables() -> dict[str, str]:
    """Return what the environment of this process's workers has to have, for `end_leftovers` to know them."""
    try:
        # Ray and vLLM write titles of processes, which would overwrite their environments as others see them.
        return {VARIABLE: _mark_of(os.getpid()), "SPT_NOENV": "1"}
    except OSError:  # not Linux
        return {}


def end_leftovers() -> list[int]:
    """End the processes of trainings whose own process is gone: it was killed, and vLLM's keep their memory.

    Ended is what has `VARIABLE` in its environment, runs as this user, and names a process of this machine, in the
    numbering that this process sees, that runs no more. It is done on Linux alone.

    Returns:
        Their process ids.

    Raises:
        ConfigError: When one does not end.
    """
    if not worker_variables() or VARIABLE in os.environ:  # a part of a training itself
        return []
    with ExitStack() as opened:
        ended: dict[int, int] = {}
        for pid in _orphans():
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)  # from here on the number is this process's, or refers to nothing
                opened.callback(os.close, handle)
                if _is_orphan(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    ended[handle] = pid
        deadline = time.monotonic() + _END_SECONDS
        if left := [pid for handle, pid in ended.items() if not _ends(handle, deadline)]:
            raise ConfigError(f"processes {sorted(left)} of a killed training do not end; end them by hand")
    if ended:
        logger.warning("lightning_verl.leftovers_ended pids=%s; of a training that was killed", sorted(ended.values()))
    return sorted(ended.values())


def _ends(handle: int, deadline: float) -> bool:
    waited = select.poll()
    waited.register(handle, select.POLLIN)
    return bool(waited.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _orphans() -> Iterator[int]:
    for path in _PROC.iterdir():
        if path.name.isdigit() and _is_orphan(int(path.name)):
            yield int(path.name)


def _is_orphan(pid: int) -> bool:
    path = _PROC / str(pid)
    try:
        if path.stat().st_uid != os.geteuid():
            return False
        variables = (path / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not ours to look at
        return False
    marks = [each.decode(errors="replace").partition("=")[2] for each in variables if each.startswith(_NAME)]
    here, _, process = (marks[0] if marks else "").rpartition("/")
    trainer = process.partition("-")[0]
    return here == _machine() and trainer.isdecimal() and not _runs(int(trainer), marks[0])


def _runs(pid: int, mark: str) -> bool:
    """Whether a process with that mark may still run: what of another user's cannot be seen counts as running."""
    try:
        return _mark_of(pid) == mark
    except OSError:
        return process_lives(pid)


_NAME = f"{VARIABLE}=".encode()


def _mark_of(pid: int) -> str:
    """Return `MACHINE/PID-START` of a process, empty for one that has ended and that its parent did not look at."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    # field 22: when it began, in ticks since the machine did
    return "" if fields[0] == "Z" else f"{_machine()}/{pid}-{fields[19]}"


def _machine() -> str:
    """Name the machine since it was started, and the numbering of processes that this one sees."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
