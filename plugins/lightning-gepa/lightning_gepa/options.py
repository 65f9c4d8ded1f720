"""The options of a search, and the most that it does."""

from typing import Literal, get_args

from lightning_apo.prompt_search import Count, Flag, Integer, Model, PromptNames, SearchOptions, SearchPlan, Temperature
from pydantic import Field

from lightning_core.errors import InvalidInput

Selector = Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"]
ModuleSelector = Literal["round_robin", "all"]


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

    def plan(self, *, n_train: int, n_val: int, n_prompts: int) -> SearchPlan:
        """See `SearchOptions.plan`.

        Raises:
            InvalidInput: When that is not even one proposal.
        """
        least = 2 * n_val + 2 * self.reflection_minibatch_size
        if self.max_metric_calls < least:
            raise InvalidInput(
                f"max_metric_calls is {self.max_metric_calls}, and the first proposal takes {least}: {n_val} "
                f"for the first prompt on the val_dataset, twice {self.reflection_minibatch_size} for the proposal on "
                f"training samples, and {n_val} on the val_dataset; raise it, or give fewer validation samples"
            )
        proposals = (self.max_metric_calls - n_val) // self.reflection_minibatch_size
        edited = n_prompts if self.module_selector == "all" else 1
        return SearchPlan(self.max_metric_calls, proposals * edited, self.reflection_lm)
