"""The model proxy: any agent, unchanged, in front of any model, every call captured.

Names are imported when they are first used: whoever wants a budget does not pay for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.proxy.backend import (
        Backend as Backend,
    )
    from lightning_core.proxy.backend import (
        BackendAnswer as BackendAnswer,
    )
    from lightning_core.proxy.backend import (
        BackendRequest as BackendRequest,
    )
    from lightning_core.proxy.budget import Budget as Budget
    from lightning_core.proxy.llm_proxy import LLMProxy as LLMProxy
    from lightning_core.proxy.model_list import ModelConfig as ModelConfig
    from lightning_core.proxy.remote import RemoteProxy as RemoteProxy
    from lightning_core.proxy.traffic import Drained as Drained

_HOMES = {
    "Backend": "backend",
    "BackendAnswer": "backend",
    "BackendRequest": "backend",
    "Budget": "budget",
    "Drained": "traffic",
    "LLMProxy": "llm_proxy",
    "ModelConfig": "model_list",
    "RemoteProxy": "remote",
}

__all__ = ["Backend", "BackendAnswer", "BackendRequest", "Budget", "Drained", "LLMProxy", "ModelConfig", "RemoteProxy"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
