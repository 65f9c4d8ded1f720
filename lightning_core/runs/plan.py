"""The most that a run will do, where its algorithm says it."""

import inspect
from dataclasses import dataclass
from typing import Any

from lightning_core.algorithm import Algorithm
from lightning_core.types import Dataset


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The most that a run does. Its text is for a person; retries of a rollout are not more rollouts."""

    algorithm: object
    """What the algorithm says that it will do."""
    held_out: int
    """The rollouts of the test on held-out samples, which the algorithm does not count."""

    @property
    def rollouts(self) -> int | None:
        """All of them; None where the algorithm does not say how many it asks for."""
        planned = getattr(self.algorithm, "rollouts", None)
        return planned + self.held_out if isinstance(planned, int) else None

    def __str__(self) -> str:
        if not self.held_out:
            return str(self.algorithm)
        total = "" if self.rollouts is None else f"at most {self.rollouts:,} rollouts: "
        return f"{total}{self.held_out:,} on held-out samples, and by the algorithm {self.algorithm}"


def plan_of(
    algorithm: Algorithm,
    train_dataset: Dataset[Any] | None = None,
    val_dataset: Dataset[Any] | None = None,
    test_dataset: Dataset[Any] | None = None,
) -> RunPlan | None:
    """Return the most that a run will do, None where its algorithm does not say.

    An algorithm says it with a method `plan(train_dataset, val_dataset)`. The text of what that returns is shown
    before the run starts; where it has `rollouts`, that is the most of them.

    Args:
        algorithm: What runs, with what it starts from.
        train_dataset: What it gets.
        val_dataset: What it gets.
        test_dataset: The held-out samples: what it starts from is measured on them, and what it has found.

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
    measured = 2 if algorithm.get_initial_resources() or algorithm.get_llm_proxy() is not None else 1
    held_out = 0 if test_dataset is None else measured * len(test_dataset)
    return RunPlan(plan(train_dataset, val_dataset), held_out)
