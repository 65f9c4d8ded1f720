from .algorithm import (
    VERL as VERL,
)
from .manager import (
    RolloutManager as RolloutManager,
)

__all__ = [
    "VERL",
    "RolloutManager",
]
