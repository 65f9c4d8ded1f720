"""How the machine and this process do, as heartbeats tell it."""

import functools
import os
import platform
import socket
import threading
import time
from typing import Any

MAX_AGE_SECONDS = 1.0
"""How old a snapshot may be: the runners of a process that beat at the same time share one."""

_lock = threading.Lock()
_newest: tuple[float, dict[str, Any]] | None = None


def system_snapshot() -> dict[str, Any]:
    """Return what is known of this machine and of this process, under the names of agentlightning 0.3.

    Sizes are in GiB (`_gb`) or MiB (`_mb`), shares in percent (`_pct`); `cpu_usage_pct` is that since the snapshot
    before, the disk is that of the root folder, and the network's counts (None where there is no interface) begin with
    the machine. Without psutil only the host, the system and the process id are known; where it fails, `snapshot_error`
    says how.
    """
    global _newest
    with _lock:
        now = time.monotonic()
        if _newest is None or now - _newest[0] > MAX_AGE_SECONDS:
            _newest = (now, {**_constants(), **_measured()})
        return dict(_newest[1])


@functools.cache
def _constants() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_name": platform.processor(),
        "cpu_threads": os.cpu_count(),
    }


def _measured() -> dict[str, Any]:
    try:
        import psutil  # type: ignore[import-untyped]  # late: it takes 20 ms
    except ImportError:
        return {"process_id": os.getpid()}
    try:
        memory, process = psutil.virtual_memory(), psutil.Process()
        disk, network = psutil.disk_usage(os.path.abspath(os.sep)), psutil.net_io_counters()
        with process.oneshot():
            return {
                "cpu_cores": psutil.cpu_count(logical=False),
                "cpu_usage_pct": psutil.cpu_percent(),
                "mem_used_gb": round(memory.used / 2**30, 2),
                "mem_total_gb": round(memory.total / 2**30, 2),
                "mem_pct": memory.percent,
                "disk_used_gb": round(disk.used / 2**30, 2),
                "disk_total_gb": round(disk.total / 2**30, 2),
                "disk_pct": disk.percent,
                "bytes_sent_mb": None if network is None else round(network.bytes_sent / 2**20, 2),
                "bytes_recv_mb": None if network is None else round(network.bytes_recv / 2**20, 2),
                "process_id": process.pid,
                "process_mem_mb": round(process.memory_info().rss / 2**20, 1),
                "process_threads": process.num_threads(),
            }
    except (psutil.Error, OSError) as exc:  # a machine that does not let itself be looked at
        return {"process_id": os.getpid(), "snapshot_error": f"{type(exc).__name__}: {exc}"}
