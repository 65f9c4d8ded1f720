"""Reinforcement learning with verl: trains the weights behind an unchanged agent.

Names are imported when they are first used, and only `AgentLightningTrainer` imports torch, Ray and verl
before a run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_verl.algorithm import GRPO as GRPO
    from lightning_verl.algorithm import PPO as PPO
    from lightning_verl.algorithm import RLOO as RLOO
    from lightning_verl.algorithm import VERL as VERL
    from lightning_verl.daemon import AgentModeDaemon as AgentModeDaemon
    from lightning_verl.learning import (
        get_left_padded_ids_and_attention_mask as get_left_padded_ids_and_attention_mask,
    )
    from lightning_verl.learning import (
        get_right_padded_ids_and_attention_mask as get_right_padded_ids_and_attention_mask,
    )
    from lightning_verl.trainer import AgentLightningTrainer as AgentLightningTrainer

_HOMES = {
    "AgentLightningTrainer": "trainer",
    "AgentModeDaemon": "daemon",
    "GRPO": "algorithm",
    "PPO": "algorithm",
    "RLOO": "algorithm",
    "VERL": "algorithm",
    "get_left_padded_ids_and_attention_mask": "learning",
    "get_right_padded_ids_and_attention_mask": "learning",
}

__all__ = [
    "GRPO",
    "PPO",
    "RLOO",
    "VERL",
    "AgentLightningTrainer",
    "AgentModeDaemon",
    "get_left_padded_ids_and_attention_mask",
    "get_right_padded_ids_and_attention_mask",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
