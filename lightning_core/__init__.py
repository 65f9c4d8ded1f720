"""Lightning Core: make any LLM agent better at its tasks, without changing the agent.

Everything that users need is here, by name; what a name needs is imported when it is first used. `__init__.pyi` says
where each name comes from.
"""

from importlib import import_module
from typing import Any

import lazy_loader

from lightning_core.compat import FORMER, OLD_NAMES, supplied
from lightning_core.compat.modules import PLACES, install

_own, _, _names = lazy_loader.attach_stub(__name__, __file__)
install()

__all__ = [
    "LLM",
    "Adapter",
    "Algorithm",
    "Attempt",
    "Budget",
    "Dataset",
    "ExecutionStrategy",
    "Fault",
    "FitResult",
    "Grader",
    "Hook",
    "InMemoryLightningStore",
    "LightningError",
    "LightningStore",
    "LitAgent",
    "ModelProxy",
    "NamedResources",
    "NoRewards",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "Runner",
    "Span",
    "Tracer",
    "Trainer",
    "Triplet",
    "algo",
    "emit_annotation",
    "emit_message",
    "emit_object",
    "emit_reward",
    "hookimpl",
    "operation",
    "rollout",
    "run_batch",
    "setup_logging",
]


def __getattr__(name: str) -> Any:
    if name in OLD_NAMES:
        value = supplied(name)
    elif name in _names:
        value = _own(name)
    elif name in PLACES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # A name such as `rollout` would otherwise be looked up anew each time.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_names, *OLD_NAMES} - FORMER.keys())
