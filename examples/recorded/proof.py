"""Measures what prompt optimisation is worth on the recorded answers, and prints it: `python proof.py`.

Needs `AGL_TEST_DATA`, see README.md. Takes some minutes; `--quick` leaves out the longest comparison.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # as `agl train` does with a config's folder

from recorded_data import Split, split  # noqa: E402
from trial_run import FULL, SMALL, TINY, Outcome, optimise, search_at_random, shuffled  # noqa: E402

from lightning_core.algorithm.estimates import PairedDifference, paired_difference  # noqa: E402

TASKS = ("tracking_shuffled_objects_three_objects", "date_understanding", "navigate")
MAIN_TASK = TASKS[0]
SEEDS = (0, 1, 2)
TEN_SEEDS = range(10)
RANDOM_SEARCHES = 20
"""For each seed: one more costs next to nothing, and makes their mean less of a matter of luck."""


async def held_out_gains(task: str) -> list[Outcome]:
    """Search on a task, once for each seed."""
    return [await optimise(split(task), seed=seed) for seed in SEEDS]


async def against_random(options: dict[str, Any], *, reads: bool = True) -> tuple[PairedDifference, float]:
    """Hold the optimiser against random search at equal calls, seed by seed.

    Returns:
        The held-out accuracy of random search (before) and of the optimiser (after); and the mean number of calls.
    """
    questions = split(MAIN_TASK)
    found = [await optimise(questions, seed=seed, options=options, reads=reads) for seed in TEN_SEEDS]
    by_chance = [
        fmean(
            search_at_random(
                questions, seed=seed * RANDOM_SEARCHES + search, calls=outcome.calls, options=options
            ).gain.after
            for search in range(RANDOM_SEARCHES)
        )
        for seed, outcome in zip(TEN_SEEDS, found, strict=True)
    ]
    difference = paired_difference(by_chance, [outcome.gain.after for outcome in found])
    assert difference is not None
    return difference, fmean(outcome.calls for outcome in found)


async def with_shuffled_rewards() -> list[Outcome]:
    """Search where rewards say nothing."""
    questions: Split = split(MAIN_TASK)
    return [await optimise(shuffled(questions, seed=seed), seed=seed) for seed in SEEDS]


async def report(*, quick: bool) -> None:
    """Print all measurements."""
    print("1. Held-out accuracy, first prompt → best prompt")
    for task in TASKS:
        for seed, outcome in zip(SEEDS, await held_out_gains(task), strict=True):
            print(f"   {task:40} seed {seed}  {outcome.gain}  {outcome.calls} calls", flush=True)
    print("2. With shuffled rewards (each question has another one's target)")
    for seed, outcome in zip(SEEDS, await with_shuffled_rewards(), strict=True):
        print(f"   {MAIN_TASK:40} seed {seed}  {outcome.gain}", flush=True)
    print(f"3. Random search → optimiser, held-out accuracy on {MAIN_TASK}, mean of {len(TEN_SEEDS)} seeds")
    sizes = {"tiny": TINY, "small": SMALL} | ({} if quick else {"full": FULL})
    for name, options in sizes.items():
        for what, reads in (("optimiser", True), ("optimiser whose critic says nothing", False)):
            difference, calls = await against_random(options, reads=reads)
            print(f"   {name:6} {calls:6.0f} calls  {what:36} {difference}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures what prompt optimisation is worth on the recorded answers.")
    parser.add_argument("--quick", action="store_true", help="leave out the longest comparison")
    asyncio.run(report(quick=parser.parse_args().quick))
