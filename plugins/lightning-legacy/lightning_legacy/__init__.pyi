from .client import (
    AgentLightningClient as AgentLightningClient,
    DevTaskLoader as DevTaskLoader,
)
from .runner import (
    LegacyAgentRunner as LegacyAgentRunner,
)
from .server import (
    AgentLightningServer as AgentLightningServer,
)

__all__ = [
    "AgentLightningClient",
    "AgentLightningServer",
    "DevTaskLoader",
    "LegacyAgentRunner",
]
