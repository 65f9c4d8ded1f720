"""Lightning Core: make any LLM agent better at its tasks, without changing the agent.

Everything that users need is here, by name; what a name needs is imported when it is first used. `__init__.pyi` says
where each name comes from.
"""

import sys
from importlib import import_module
from typing import Any

import lazy_loader

from lightning_core.former import SUPPLIED, install, supplied

_stub_getattr, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
install()


def __getattr__(name: str) -> Any:
    value: Any
    if name in SUPPLIED:
        value = supplied(name)
    elif name in __all__:
        value = _stub_getattr(name)
    elif name.startswith("_"):
        raise _unknown(name)
    else:
        try:
            value = import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as exc:
            if exc.name == f"{__name__}.{name}":
                raise _unknown(name) from None
            if exc.name == "lightning_legacy":
                raise _unknown(name, str(exc)) from None
            raise
    # A name such as `rollout` would otherwise be looked up anew each time.
    globals()[name] = value
    return value


def _unknown(name: str, why: str = "") -> AttributeError:
    # With its object, Python's traceback suggests the name that was meant.
    message = why or f"module {__name__!r} has no attribute {name!r}"
    return AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *SUPPLIED})
