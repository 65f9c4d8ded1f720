"""Lightning Core: make any LLM agent better at its tasks, without changing the agent.

Everything that users need is here, by name; what a name needs is imported when it is first used. `__init__.pyi` says
where each name comes from.
"""

from typing import Any

import lazy_loader

from lightning_core.compat import SUPPLIED, supplied

_own, _, _names = lazy_loader.attach_stub(__name__, __file__)

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
    if name not in SUPPLIED and name not in _names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = supplied(name) if name in SUPPLIED else _own(name)
    # A name such as `rollout` would otherwise be looked up anew each time.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_names, *SUPPLIED})
