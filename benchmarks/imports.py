"""Measure what importing the core costs: the best of five new processes, a line a figure.

    python benchmarks/imports.py

The time is that of the import statement alone; the peak is that of the whole process, interpreter included.
"""

import json
import subprocess
import sys
from typing import NamedTuple

PROCESSES = 5
MAX_PEAK_MIB = 40
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


def main() -> None:
    """Print the cost of each import beside its target."""
    for statement, max_seconds in (
        ("import lightning_core", 0.25),
        ("from lightning_core import Trainer, rollout", 0.5),
    ):
        costs = [measure(statement) for _ in range(PROCESSES)]
        seconds = min(cost.seconds for cost in costs)
        peak_mib = min(cost.peak_mib for cost in costs)
        print(f"{statement}: {seconds:.3f} s (target: under {max_seconds} s)")
        print(f"{statement}: {peak_mib:.1f} MiB (target: under {MAX_PEAK_MIB} MiB)")


if __name__ == "__main__":
    main()
