"""Reinforcement learning in one process: trains the weights behind an unchanged agent, with torch and transformers.

To read it, follow one step of `training.Training`: `lightning_tokens.learning.rollouts` runs the agent on a few tasks,
several times each; `serving` lets it call the model; `lightning_tokens.learning` makes rows and advantages of that, and
`step` the loss; `policy` is the model, which generates and learns.
"""

from lightning_grpo.algorithm import GRPO, RLOO

__all__ = ["GRPO", "RLOO"]
