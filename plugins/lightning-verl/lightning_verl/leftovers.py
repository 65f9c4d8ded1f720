"""What holds the GPUs of this machine before a training starts: processes that a killed one has left, and others."""

import logging
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from lightning_core.errors import ConfigError

logger = logging.getLogger(__name__)

VARIABLE = "AGL_VERL_TRAINER"
"""Names the process that trains, in the environment of every process that Ray starts for it, and of their children."""

_END_SECONDS = 30.0
_ASK_SECONDS = 30.0
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
        waited = select.poll()
        for handle in ended:
            waited.register(handle, select.POLLIN)
        left, deadline = dict(ended), time.monotonic() + _END_SECONDS
        while left:
            gone = waited.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not gone:
                raise ConfigError(
                    f"processes {sorted(left.values())} of a killed training do not end; end them by hand"
                )
            for handle, _ in gone:
                waited.unregister(handle)
                del left[handle]
    if ended:
        logger.warning("lightning_verl.leftovers_ended pids=%s; of a training that was killed", sorted(ended.values()))
    return sorted(ended.values())


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
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


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


def check_gpu_memory(share: float, *, n_gpus: int) -> None:
    """Refuse GPUs that have less free memory than the generating servers take, and name what holds it.

    Args:
        share: Of a GPU's memory, that which they take: `rollout.gpu_memory_utilization`.
        n_gpus: How many of those that this process may use are used, from the first on.

    Raises:
        ConfigError: Names the processes, as far as NVIDIA's driver shows them. Nothing is checked without its
            `nvidia-smi`.
    """
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return
    gpus = [row for row in _asked(smi, "gpu=uuid,index,memory.total,memory.free") if row[2].isdecimal()]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        gpus = [row for name in names for row in gpus if name and (row[1] == name or row[0].startswith(name))]
    for uuid, index, total, free in gpus[:n_gpus]:
        if int(free) >= share * int(total):
            continue
        holders = [row[1:] for row in _asked(smi, "compute-apps=gpu_uuid,pid,name,used_memory") if row[0] == uuid]
        named = ", ".join(f"{pid} {', '.join(name)} ({used} MiB)" for pid, *name, used in holders)
        raise ConfigError(
            f"GPU {index} has {free} of {total} MiB free, and the generating servers take {share:g} of it "
            "(actor_rollout_ref.rollout.gpu_memory_utilization). It is held by "
            f"{named or 'processes that this machine does not show, such as those of another container'}; end them, "
            "choose other GPUs with CUDA_VISIBLE_DEVICES, or set a smaller share"
        )


def _asked(smi: str, query: str) -> list[list[str]]:
    """Return the rows of one of the driver's tables; none where it does not answer."""
    command = [smi, f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as exc:
        logger.warning("lightning_verl.gpus_unknown %s: %s", " ".join(command), exc)
        return []
    return [[field.strip() for field in line.split(", ")] for line in said.splitlines() if line.strip()]
