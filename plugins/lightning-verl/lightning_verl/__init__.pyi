from .algorithm import (
    PPO as PPO,
    VERL as VERL,
)
from .manager import (
    RolloutManager as RolloutManager,
)

__all__ = [
    "PPO",
    "VERL",
    "RolloutManager",
]
