"""The options of a search, and the most that it does."""

from dataclasses import dataclass
from typing import Literal, get_args

from lightning_apo.prompt_search import Count, Flag, Integer, Model, PromptNames, SearchOptions, Temperature
from pydantic import Field

from lightning_core.errors import InvalidInput
from lightning_core.texts import counted

Selector = Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"]
ModuleSelector = Literal["round_robin", "all"]

FEW = 3
"""A search that can try fewer accepted proposals is said to be too small."""


class Options(SearchOptions):
    """The options of `GEPA`, which says what they mean."""

    reflection_lm: Model
    temperature: Temperature
    max_metric_calls: Count
    reflection_minibatch_size: Count
    candidate_selection_strategy: Selector = Field(description=f"one of {', '.join(get_args(Selector))}")
    module_selector: ModuleSelector = Field(description=f"one of {', '.join(get_args(ModuleSelector))}")
    n_proposals: Count
    use_merge: Flag
    max_merge_invocations: Count
    perfect_score: float | None = Field(description="the highest reward that there is, or none if there is no such")
    failure_score: float = Field(description="a number")
    seed: Integer
    prompt_names: PromptNames

    def plan(self, *, n_train: int, n_val: int, n_prompts: int) -> "Plan":
        """See `SearchOptions.plan`.

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
