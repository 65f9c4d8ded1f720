from .algorithm import (
    PPO as PPO,
    VERL as VERL,
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
    "RolloutManager",
]
