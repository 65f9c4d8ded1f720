"""Names that other packages supply, and the hook for what agentlightning 0.3 named or shaped otherwise.

lightning-legacy fills that hook. It is read when a name, a path or a form is met that this package does not have.
"""

import functools
import re
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

from lightning_core.errors import NeedsLegacy

DROPPED: Final = frozenset(
    {
        *("AgentLightningClient", "AgentLightningServer", "DevTaskLoader", "GenericResponse", "LegacyAgentRunner"),
        *("RolloutLegacy", "RolloutRawResultLegacy", "Task", "TaskIfAny"),
    }
)
"""Names of 0.3, which had deprecated them, of the protocol of 0.1 and 0.2."""

SUPPLIED: Final = {
    **dict.fromkeys(DROPPED, ""),
    "APO": "lightning_apo",
    "AgentOpsTracer": "lightning_agentops",
    "ClientServerExecutionStrategy": "lightning_http.processes:ProcessesStrategy",
    "CommandAgent": "lightning_agents",
    "HttpAgent": "lightning_agents",
    "LLMProxy": "lightning_proxy",
    "LightningEnvVar": "lightning_legacy.command_line",
    "LightningStoreClient": "lightning_http",
    "LightningStoreServer": "lightning_http",
    "ModelConfig": "lightning_proxy",
    "ParallelWorkerBase": "lightning_legacy.names",
    "SpanAttributeNames": "lightning_legacy.names",
    "SpanNames": "lightning_legacy.names",
    "VERL": "lightning_verl",
    "WeaveTracer": "lightning_weave",
    "configure_logger": "lightning_legacy.names",
    "lightning_cli": "lightning_legacy.command_line",
    "resolve_bool_env_var": "lightning_legacy.command_line",
    "resolve_int_env_var": "lightning_legacy.command_line",
    "resolve_str_env_var": "lightning_legacy.command_line",
}
"""The module that has each name, and after a colon what it is called there."""

GROUP: Final = "lightning_core.former"
"""The entry-point group of the hook: a module with the functions of `lightning_legacy.former`."""

NAMES: Final = re.compile(
    "AlgorithmFunc.*|ComponentSpec|LightningSpanProcessor|LinkPydanticModel|RewardPydanticModel|TraceTree|"
    "STORE_WRITE_TIMEOUT_SECONDS|find_final_reward|find_reward_spans|get_reward_value|is_finished|is_queuing|"
    "is_reward_span|is_running|with_active_tracer_context"
)
"""What modules of this package have only with lightning-legacy.

A `from` import of anything else that a module lacks gives Python's own error, and `hasattr` is false.
"""

_LEGACY: Final = "lightning-legacy"
_PREFIX: Final = "lightning_core."
_TESTING: Final = "lightning_core.testing"
"""It has no names of 0.3, and pytest has its own loader for it."""


def supplied(name: str) -> Any:
    """Return what stands behind a name of `SUPPLIED`.

    Raises:
        ImportError: When it is dropped, or the distribution that has it is not installed.
    """
    if name in DROPPED:
        raise ImportError(
            f"{name} is not here, as nothing speaks the protocol of agentlightning 0.1 and 0.2: Trainer.fit runs an "
            "agent, Trainer.dev tries it, and docs/programs.md and docs/services.md have agents in processes of their "
            "own"
        )
    module, _, attribute = SUPPLIED[name].partition(":")
    return getattr(import_plugin(module, name), attribute or name)


def import_plugin(module: str, name: str) -> Any:
    """Import the module that has what is called `name` here.

    Raises:
        ImportError: When it is a plugin's, which is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        package = module.partition(".")[0]
        if exc.name != package:
            raise
        distribution = package.replace("_", "-")
        raise ImportError(
            f"{name} ships in {distribution}, which is not installed. {_how_to_install(distribution)}", name=module
        ) from exc


@functools.cache
def find_former() -> Any:
    """Return the module that fills the hook; None where lightning-legacy is not installed."""
    entry_point = next(iter(entry_points(group=GROUP)), None)
    return None if entry_point is None else entry_point.load()


def former(met: str) -> Any:
    """Return the module that fills the hook.

    Args:
        met: The older form that was met, and how it is written today, for the error.

    Raises:
        NeedsLegacy: When lightning-legacy is not installed.
    """
    found = find_former()
    if found is None:
        raise NeedsLegacy(f"{met}. Or use it as it is, with {_LEGACY}. {_how_to_install(_LEGACY)}")
    return found


def _not_here(path: str) -> str:
    return (
        f"there is no {path}; if agentlightning 0.3 has it, it is in {_LEGACY}, which is not installed. "
        f"{_how_to_install(_LEGACY)}; docs/migrating.md says what is in another place, or dropped"
    )


def _how_to_install(distribution: str) -> str:
    from lightning_core.registry.registry import how_to_install  # late: only for messages

    return how_to_install(distribution)


def install() -> None:
    """Let names and paths of this package that are not here be looked up in the hook. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX) or fullname.startswith(_TESTING):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            found = find_former()
            if found is None:
                # Its name is not `fullname`: a `from` import would then leave out the message.
                raise ModuleNotFoundError(_not_here(fullname), name=_LEGACY.replace("-", "_"))
            made: ModuleSpec | None = found.find_module(fullname)
            return made
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module of this package, and lets it look up what it lacks."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        getter = module.__dict__.get("__getattr__")

        def find(name: str) -> Any:
            if getter is not None:
                try:
                    return getter(name)
                except AttributeError:
                    pass
            path = module.__dict__.get("__path__")
            is_here = path is not None and PathFinder.find_spec(f"{module.__name__}.{name}", path) is not None
            if not name.startswith("_") and not is_here:
                hook = find_former()
                if hook is not None:
                    return hook.find_name(module, name)
                why = _not_here(f"{module.__name__}.{name}")
                if NAMES.fullmatch(name):
                    raise ImportError(why)
            else:
                why = f"module {module.__name__!r} has no attribute {name!r}"
            raise AttributeError(why, name=name, obj=module)

        module.__dict__["__getattr__"] = find
