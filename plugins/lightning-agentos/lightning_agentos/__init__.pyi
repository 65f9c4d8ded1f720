from .governance import (
    PolicyViolationError as PolicyViolationError,
    governed as governed,
)
from .reward import (
    PolicyReward as PolicyReward,
)
from .runner import (
    AgentOSRunner as AgentOSRunner,
)

__all__ = [
    "AgentOSRunner",
    "PolicyReward",
    "PolicyViolationError",
    "governed",
]
