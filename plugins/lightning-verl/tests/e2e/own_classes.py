import logging
from dataclasses import replace

from lightning_verl import RolloutManager


class Brief(RolloutManager):
    """Takes a hundredth from a rollout's reward for each token that the model said."""

    def learn(self, rollouts):
        return super().learn(
            [
                replace(each, reward=each.reward - 0.01 * sum(each.answer_lengths)) if each.was_scored else each
                for each in rollouts
            ]
        )


class Announced:
    """Goes before verl's trainer: its methods are called first, and `super()` has verl's."""

    def on_step_end(self):
        super().on_step_end()
        logging.getLogger("mine").info("step %d of %d has ended", self.global_steps, self.total_training_steps)
