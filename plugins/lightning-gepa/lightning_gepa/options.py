"""The options of a search, and the most that it does."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.errors import InvalidInput
from lightning_core.texts import counted

SELECTORS = ("pareto", "current_best", "epsilon_greedy", "top_k_pareto")
MODULE_SELECTORS = ("round_robin", "all")

FEW = 3
"""A search that can try fewer accepted proposals is said to be too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `GEPA`, which says what they mean.

    Raises:
        ValueError: Names the option that has a value it cannot have.
    """

    reflection_lm: str
    temperature: float
    max_metric_calls: int
    reflection_minibatch_size: int
    candidate_selection_strategy: str
    module_selector: str
    n_proposals: int
    use_merge: bool
    max_merge_invocations: int
    perfect_score: float | None
    failure_score: float
    seed: int
    prompt_names: tuple[str, ...] | None

    def __post_init__(self) -> None:
        names = self.prompt_names
        self._check("reflection_lm", _is_text(self.reflection_lm), "the name of a model")
        self._check("temperature", _is_finite(self.temperature) and self.temperature >= 0, "a number of at least 0")
        for name in ("max_metric_calls", "reflection_minibatch_size", "n_proposals", "max_merge_invocations"):
            value = getattr(self, name)
            self._check(name, _is_integer(value) and value >= 1, "an integer of at least 1")
        self._check("candidate_selection_strategy", self.candidate_selection_strategy in SELECTORS, _one_of(SELECTORS))
        self._check("module_selector", self.module_selector in MODULE_SELECTORS, _one_of(MODULE_SELECTORS))
        self._check("use_merge", isinstance(self.use_merge, bool), "true or false")
        is_score = self.perfect_score is None or _is_finite(self.perfect_score)
        self._check("perfect_score", is_score, "the highest reward that there is, or none if there is no such")
        self._check("failure_score", _is_finite(self.failure_score), "a number")
        self._check("seed", _is_integer(self.seed), "an integer")
        are_names = names is None or (isinstance(names, tuple) and bool(names) and all(map(_is_text, names)))
        self._check("prompt_names", are_names, "a list of names of prompts, or none for all of them")

    def as_dict(self) -> dict[str, Any]:
        """Return all of them by name."""
        return asdict(self)

    def plan(self, *, n_val: int, n_prompts: int) -> "Plan":
        """Count the most that a search can do.

        Raises:
            InvalidInput: When that is not even one proposal.
        """
        least = n_val + 2 * self.reflection_minibatch_size
        if self.max_metric_calls < n_val + least:
            raise InvalidInput(
                f"max_metric_calls is {self.max_metric_calls}, and the first proposal takes {n_val + least}: {n_val} "
                f"for the first prompt on the val_dataset, twice {self.reflection_minibatch_size} for the proposal on "
                f"training samples, and {n_val} on the val_dataset; raise it, or give fewer validation samples"
            )
        proposals = (self.max_metric_calls - n_val) // self.reflection_minibatch_size
        edited = n_prompts if self.module_selector == "all" else 1
        return Plan(
            rollouts=self.max_metric_calls,
            model_calls=proposals * edited,
            model=self.reflection_lm,
            accepted=(self.max_metric_calls - n_val) // least,
            wanted=n_val + FEW * least,
        )

    def _check(self, name: str, is_right: object, what: str) -> None:
        if not is_right:
            raise ValueError(f"{name} is {getattr(self, name)!r}; it has to be {what}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The most that a search does; the held-out test and the agent's own calls come on top."""

    rollouts: int
    model_calls: int
    """Requests to the model that rewrites prompts."""
    model: str
    accepted: int
    """How many proposals there are rollouts for, if each is accepted, and so is tried on all validation samples."""
    wanted: int
    """The `max_metric_calls` for `FEW` such."""

    @property
    def is_too_small(self) -> bool:
        """Whether the rollouts are hardly enough for a search."""
        return self.accepted < FEW

    def __str__(self) -> str:
        words = f"at most {self.rollouts:,} rollouts and {self.model_calls:,} model calls of its own ({self.model})"
        if self.is_too_small:
            words += (
                f". These try {counted(self.accepted, 'proposal')} on all validation samples: for {FEW}, set "
                f"max_metric_calls to {self.wanted}, or give fewer validation samples"
            )
        return words


def _one_of(names: tuple[str, ...]) -> str:
    return f"one of {', '.join(names)}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
