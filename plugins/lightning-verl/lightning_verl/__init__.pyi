from .algorithm import (
    PPO as PPO,
    VERL as VERL,
)
from .daemon import (
    AgentModeDaemon as AgentModeDaemon,
    get_left_padded_ids_and_attention_mask as get_left_padded_ids_and_attention_mask,
    get_right_padded_ids_and_attention_mask as get_right_padded_ids_and_attention_mask,
)
from .manager import (
    RolloutManager as RolloutManager,
)
from .trainer import (
    AgentLightningTrainer as AgentLightningTrainer,
)

__all__ = [
    "PPO",
    "VERL",
    "AgentLightningTrainer",
    "AgentModeDaemon",
    "RolloutManager",
    "get_left_padded_ids_and_attention_mask",
    "get_right_padded_ids_and_attention_mask",
]
