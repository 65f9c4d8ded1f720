"""What a search may cost, before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from lightning_apo.prompt_search import Count, Flag, Integer, Model, PromptNames, SearchOptions, SearchPlan, Temperature
from lightning_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Plan(SearchPlan):
    """The most that a search does. It does less where edits are equal or rejected, or there is nothing left to measure.

    The held-out test of the trainer comes on top, and so do the calls that the agent itself makes in each rollout.
    """

    held_samples: int
    """Validation samples that no search sees: the gain is tested on them, at the end."""
    critic_calls: int
    """Requests to the model that criticises. Where one fails for good, another one takes the place of an edit."""
    editor_calls: int
    """Requests to the model that edits."""


class Options(SearchOptions):
    """The options of `APO`, which says what they mean."""

    gradient_model: Model
    apply_edit_model: Model
    diversity_temperature: Temperature
    gradient_batch_size: Count
    val_batch_size: Count
    beam_width: Count
    branch_factor: Count
    beam_rounds: Count
    rollout_batch_timeout: float = Field(gt=0, description="more than 0 seconds")
    run_initial_validation: Flag
    seed: Integer
    prompt_names: PromptNames = None
    max_rollouts: int | None = Field(
        None, ge=1, description="an integer of at least 1, or none for as many as the other options take"
    )

    def rounds(self, n_prompts: int) -> int:
        """How many rounds there are for so many prompts."""
        return self.beam_rounds * n_prompts

    def edited_in(self, round_number: int, names: Sequence[str]) -> str:
        """Which prompt is edited in a round, the first of which is 1: each in its turn."""
        return names[(round_number - 1) % len(names)]

    def plan(self, *, n_train: int, n_val: int, n_prompts: int = 1) -> Plan:
        """See `SearchOptions.plan`.

        Raises:
            InvalidInput: When there are too few rollouts for one round.
        """
        rounds, width, limit = self.rounds(n_prompts), self.beam_width, self.max_rollouts
        branches, training = width * self.branch_factor, min(n_train, self.gradient_batch_size)
        held = n_val // 3 if limit is None else min(n_val // 3, limit // 10)
        # The first round has one parent, later ones have the beam.
        critiques = training * (1 + (rounds - 1) * width)
        races = rounds * (branches * min(self.val_batch_size, n_val - held) + width)
        rollouts = critiques + races + 2 * held
        if limit is not None:
            least = training + branches + 1 + 2 * held
            if limit < least:
                raise InvalidInput(
                    f"max_rollouts is {limit}, and the first round takes {least}: {training} for critiques, one for "
                    f"each of {branches} edits and the first prompt, and {2 * held} to test the gain; raise it, or "
                    "lower beam_width or branch_factor"
                )
            rollouts = min(rollouts, limit)
        critic_calls = rounds * width
        editor_calls = rounds * branches
        return Plan(
            rollouts=rollouts,
            model_calls=critic_calls + editor_calls,
            asks=f"{critic_calls:,} critiques by {self.gradient_model}, {editor_calls:,} edits by "
            f"{self.apply_edit_model}",
            held_samples=held,
            critic_calls=critic_calls,
            editor_calls=editor_calls,
        )
