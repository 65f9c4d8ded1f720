"""Reinforcement learning with verl: trains the weights behind an unchanged agent.

Names are imported when they are first used, and only `AgentLightningTrainer` imports torch, Ray and verl
before a run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
