"""How much a run will do at most, before it starts."""

import inspect
from typing import Any

from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.types import Dataset


def plan_of(
    algorithm: Algorithm, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
) -> object | None:
    """Return what an algorithm says that it will do, None where it does not say.

    An algorithm says it with a method `plan(train_dataset, val_dataset)`. The text of what that returns is shown
    before the run starts; where it has `rollouts`, that is the most of them.

    Raises:
        AlgorithmError: What the algorithm raised, as its `run` would: something that it needs is missing.
    """
    plan = getattr(algorithm, "plan", None)
    if not inspect.ismethod(plan):
        return None
    try:
        inspect.signature(plan).bind(train_dataset, val_dataset)
    except TypeError:  # it is about something else
        return None
    return plan(train_dataset, val_dataset)  # type: ignore[no-any-return]  # anything with a text will do


def expected_rollouts(
    algorithm: Algorithm,
    plan: object | None,
    *,
    train_dataset: Dataset[Any] | None = None,
    val_dataset: Dataset[Any] | None = None,
    held_out: int = 0,
) -> int | None:
    """Return how many rollouts a run will have at most; None where nobody knows.

    Args:
        algorithm: What runs.
        plan: What `plan_of` returned.
        train_dataset: What it gets.
        val_dataset: What it gets.
        held_out: The rollouts of the test on held-out samples, which comes after the algorithm.
    """
    planned = getattr(plan, "rollouts", None)
    if planned is None and isinstance(algorithm, Baseline):
        planned = algorithm.n_epochs * sum(len(data) for data in (train_dataset, val_dataset) if data is not None)
    return planned + held_out if isinstance(planned, int) else None
