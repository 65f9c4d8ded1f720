"""What the search can be told."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `APO`, which says what they mean.

    Raises:
        ValueError: Names the option that has a value it cannot have.
    """

    gradient_model: str
    apply_edit_model: str
    diversity_temperature: float
    gradient_batch_size: int
    val_batch_size: int
    beam_width: int
    branch_factor: int
    beam_rounds: int
    rollout_batch_timeout: float
    run_initial_validation: bool
    seed: int

    def __post_init__(self) -> None:
        for name in ("gradient_model", "apply_edit_model"):
            _check(self, name, lambda value: isinstance(value, str) and value.strip(), "the name of a model")
        for name in ("gradient_batch_size", "val_batch_size", "beam_width", "branch_factor", "beam_rounds"):
            _check(self, name, lambda value: _is_integer(value) and value >= 1, "an integer of at least 1")
        _check(self, "diversity_temperature", lambda value: _is_finite(value) and value >= 0, "a number of at least 0")
        _check(self, "rollout_batch_timeout", lambda value: _is_finite(value) and value > 0, "more than 0 seconds")
        _check(self, "run_initial_validation", lambda value: isinstance(value, bool), "true or false")
        _check(self, "seed", _is_integer, "an integer")


def _check(options: Options, name: str, is_right: Callable[[Any], object], what: str) -> None:
    value = getattr(options, name)
    if not is_right(value):
        raise ValueError(f"{name} is {value!r}; it has to be {what}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
