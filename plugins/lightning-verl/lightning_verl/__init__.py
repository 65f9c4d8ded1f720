"""Reinforcement learning with verl: trains the weights behind an unchanged agent.

Names are imported when they are first used, and only `AgentLightningTrainer` imports torch, Ray and verl
before a run.

To read it, follow one training from its config to the loss:

1. `config.load_settings`: verl's options and ours, checked by `rules`.
2. `algorithm.VERL.run`: makes the parts of a training, in the event loop.
3. `training.Training`: verl's loop in a thread of its own, with Ray and the queue of rows.
4. `trainer.LightningMixin`: what is changed in verl's trainer; it asks for groups of rollouts.
5. `manager.RolloutManager.generate_sequences`: enqueues them. Agents call the model through `serving`.
6. `lightning_tokens.learning`: `rollouts` enqueues and awaits them, `outcomes` is what one gave, `rows` its rows of
   tokens, `groups` what each answer is worth (grpo, rloo). `queue` stores the rows.
7. `trainer` again, and `learning.steps`: the advantages and weights of a whole step, then verl's loss.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
