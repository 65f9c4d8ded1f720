"""What agentlightning 0.3 named or shaped otherwise: module paths, helpers, and subclasses with its methods only."""

from typing import Any, Final

DROPPED: Final = ("AgentLightningClient", "AgentLightningServer", "DevTaskLoader", "LegacyAgentRunner")
"""Names of 0.3, which had deprecated them, for the protocol of 0.1 and 0.2."""


def __getattr__(name: str) -> Any:
    if name in DROPPED:
        raise ImportError(
            f"{name} is not here, as nothing speaks the protocol of agentlightning 0.1 and 0.2: Trainer.fit runs an "
            "agent, Trainer.dev tries it, and docs/programs.md and docs/services.md have agents in processes of their "
            "own"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
