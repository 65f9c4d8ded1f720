"""How it is learned from rollouts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Level = Literal["transition", "trajectory"]
"""What a row is: one model call, or all calls whose tokens are exactly continuous."""

Credit = Literal["final", "per_call", "discounted"]
"""Which rewards an answer is judged by: the rollout's, its own, or its own and the later ones."""

OWN_ESTIMATORS = ("grpo", "rloo", "gae")
"""The advantage estimators that this package computes for whole rollouts; any other one is verl's, row by row."""

_NOTHING: Mapping[str, float] = MappingProxyType({})
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """The options of this package's functions; `docs/verl.md` says what each option means."""

    max_prompt_length: int
    """Tokens; a row with a longer prompt is left out of the loss."""
    max_response_length: int
    """Tokens; a longer response is cut."""
    level: Level = "transition"
    credit: Credit = "final"
    call_discount: float = 1.0
    """By how much a reward counts less for each call that lies before it; for `credit="discounted"`."""
    reward_weights: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    """By name of a reward, its weight in the sum that is learned from; empty for the primary reward alone."""
    on_failure: Literal["drop"] | float = "drop"
    """What a rollout that failed is worth: nothing at all, or this number."""
    mask_truncated: bool = False
    """Whether rollouts that were cut off are left out of the loss; their rewards count in the group."""
    overlong_buffer: int = 0
    """Tokens before `max_response_length` over which long responses lose reward; see `overlong_punishment`. 0 for
    none."""
    overlong_penalty: float = 1.0
    """The most that they lose."""
    overlong_counts_prompt: bool = False
    """Whether the prompt counts in that length: where `max_response_length` limits both together."""
    estimator: str = "grpo"
    """The advantage estimator, as verl names it."""
    norm_by_std: bool = True
    """Whether GRPO divides by the standard deviation; without it is Dr. GRPO."""
    advantage: Literal["rollout", "row"] = "rollout"
    """Whether an advantage is one of a rollout, or each row is a sample of its own, as verl has it."""
    loss: Literal["rollout", "verl"] = "rollout"
    """Whether each rollout weighs the same in the loss, or what `actor.loss_agg_mode` says."""
    needs_logprobs: bool = True
    """Whether a row without the engine's log-probabilities is of no use."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Give the options that have no effect beside the others, or would take reward from every rollout, and why."""
        if self.call_discount != 1.0 and self.credit != "discounted":
            yield "call_discount", "it has an effect with credit=discounted only; set that, too"
        if self.overlong_buffer and self.credit != "final":
            yield (
                "overlong_buffer",
                "it lowers the reward of a whole rollout; set credit=final, or mask_truncated",
            )
        if self.overlong_penalty != 1.0 and not self.overlong_buffer:
            yield "overlong_penalty", "it has an effect with overlong_buffer only; set that, too"
        if self.overlong_buffer >= self.max_response_length:
            longest = f"the {self.max_response_length} tokens of the longest response"
            yield "overlong_buffer", f"it is the last part of {longest}, so set it to less"

    @property
    def min_rewards(self) -> int:
        """How many rollouts with a reward a group needs to be learned from."""
        return 1 if self.estimator in _WITHOUT_GROUPS else 2
