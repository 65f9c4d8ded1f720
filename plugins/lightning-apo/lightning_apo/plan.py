"""What a search may cost, before it starts."""

from dataclasses import dataclass

from lightning_apo.options import Options


@dataclass(frozen=True, slots=True)
class Plan:
    """The most that a search does. It does less where edits are equal or rejected, or fewer prompts are kept.

    The held-out test of the trainer comes on top, and so do the calls that the agent itself makes in each rollout.
    """

    train_rollouts: int
    """Rollouts on training samples."""
    val_rollouts: int
    """Rollouts on validation samples."""
    critic_calls: int
    """Requests to the model that criticises. What a client sends again after a failure is not counted."""
    editor_calls: int
    """Requests to the model that edits."""
    gradient_model: str
    apply_edit_model: str

    @property
    def rollouts(self) -> int:
        """All rollouts."""
        return self.train_rollouts + self.val_rollouts

    @property
    def model_calls(self) -> int:
        """All requests to models, but for the agent's own."""
        return self.critic_calls + self.editor_calls

    def __str__(self) -> str:
        return (
            f"at most {self.rollouts:,} rollouts ({self.train_rollouts:,} training, {self.val_rollouts:,} validation) "
            f"and {self.model_calls:,} model calls of its own ({self.critic_calls:,} of {self.gradient_model}, "
            f"{self.editor_calls:,} of {self.apply_edit_model})"
        )


def plan_search(options: Options, *, n_train: int, n_val: int, n_prompts: int = 1) -> Plan:
    """Count the most that a search can do.

    Args:
        options: Of the search.
        n_train: How many training samples there are.
        n_val: How many validation samples there are.
        n_prompts: How many prompts are tuned.
    """
    rounds, width = options.rounds(n_prompts), options.beam_width
    branches = width * options.branch_factor
    hand = min(options.val_batch_size, n_val)
    # All branches of the first round are the first prompt's; later ones are spread over the beam.
    first_train = min(n_train, branches * options.gradient_batch_size)
    later_train = width * min(n_train, options.branch_factor * options.gradient_batch_size)
    # What stays in the beam was tried on one hand at least, and needs no more than the rest.
    first_val = n_val if options.run_initial_validation else hand
    later_val = width * min(hand, n_val - hand)
    edits_of_a_branch = n_prompts if options.jointly else 1
    return Plan(
        train_rollouts=first_train + (rounds - 1) * later_train,
        val_rollouts=first_val + rounds * branches * hand + (rounds - 1) * later_val + width * (n_val - hand),
        critic_calls=rounds * branches,
        editor_calls=rounds * branches * edits_of_a_branch,
        gradient_model=options.gradient_model,
        apply_edit_model=options.apply_edit_model,
    )
