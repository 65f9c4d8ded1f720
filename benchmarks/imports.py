"""Measure what importing the core and listing the plugins cost: the best of five new processes, a line a figure.

    python benchmarks/imports.py

The time of an import is that of the statement alone, and that of the listing is the whole command's; the peak is that
of the whole process, interpreter included.
"""

import json
import subprocess
import sys
import time
from typing import NamedTuple

PROCESSES = 5
MAX_PEAK_MIB = 40
MAX_LISTING_SECONDS = 0.3
TIMEOUT_SECONDS = 60

MEASURE = """
import json, resource, sys, time
started = time.perf_counter()
{statement}
seconds = time.perf_counter() - started
try:
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
except FileNotFoundError:  # macOS, which counts in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([seconds, peak]))
"""


class Cost(NamedTuple):
    """What one import took in one process."""

    seconds: float
    peak_mib: float


def measure(statement: str) -> Cost:
    """Run one import statement in a new process."""
    completed = subprocess.run(
        [sys.executable, "-c", MEASURE.format(statement=statement)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_SECONDS,
    )
    return Cost(*json.loads(completed.stdout))


def measure_listing() -> float:
    """Run `agl plugins` in a new process, and return its seconds from start to end."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "lightning_core", "plugins"],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_SECONDS,
    )
    return time.perf_counter() - started


def main() -> None:
    """Print the cost of each import, and of listing what is installed, beside its target."""
    for statement, max_seconds in (
        ("import lightning_core", 0.25),
        ("from lightning_core import Trainer, rollout", 0.5),
    ):
        costs = [measure(statement) for _ in range(PROCESSES)]
        seconds = min(cost.seconds for cost in costs)
        peak_mib = min(cost.peak_mib for cost in costs)
        print(f"{statement}: {seconds:.3f} s (target: under {max_seconds} s)")
        print(f"{statement}: {peak_mib:.1f} MiB (target: under {MAX_PEAK_MIB} MiB)")
    listing = min(measure_listing() for _ in range(PROCESSES))
    print(f"agl plugins: {listing:.3f} s (target: under {MAX_LISTING_SECONDS} s)")


if __name__ == "__main__":
    main()
