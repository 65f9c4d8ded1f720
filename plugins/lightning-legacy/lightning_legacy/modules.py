"""Module paths of agentlightning 0.3: `lightning_core.types.core` is found, and has the names that it had there.

A path that the core has no module for becomes one when it is imported. To a module that is there, the names are added
that it lacks. Both look them up, when they are first used, in the places of one table.
"""

from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from lightning_core.former import SUPPLIED, import_plugin, supplied

_PREFIX = "lightning_core."

PLACES: Final[dict[str, str]] = {
    "adapter.messages": "adapter",
    "adapter.triplet": "TraceTree=lightning_legacy.trees:TraceTree adapter",
    "algorithm": "lightning_legacy.algorithms",
    "algorithm.apo": "lightning_apo",
    "algorithm.apo.apo": "lightning_apo lightning_legacy.algorithms",
    "algorithm.base": "algorithm",
    "algorithm.decorator": "AlgorithmFunc*=lightning_legacy.names:Function",
    "algorithm.fast": "algorithm",
    "algorithm.utils": "lightning_legacy.algorithms",
    "algorithm.verl": "lightning_verl",
    "algorithm.verl.interface": "lightning_verl",
    "client": "",
    "config": "lightning_legacy.command_line",
    "contrib": "",
    "contrib.reward": "",
    "contrib.reward.agentos": "lightning_agentos",
    "contrib.runner": "",
    "contrib.runner.agentos": "lightning_agentos",
    "emitter.annotation": "emitter",
    "emitter.exception": "emitter",
    "emitter.object": "emitter",
    "emitter.reward": "emitter",
    "env_var": "lightning_legacy.command_line",
    "execution": "",
    "execution.client_server": "",
    "execution.events": "execution",
    "execution.shared_memory": "execution",
    "instrumentation": "instrument_all=lightning_legacy.processors:instrument_all "
    "uninstrument_all=lightning_legacy.processors:uninstrument_all",
    "litagent": "agent",
    "litagent.decorator": "agent.decorators agent *RolloutFunc*=lightning_legacy.names:Function "
    "FunctionalLitAgentFunc=lightning_legacy.names:Function",
    "litagent.litagent": "agent",
    "llm_proxy": "lightning_proxy",
    "logging": "logs setup=logs:setup_logging setup_module=logs:setup_module_logging",
    "reward": "emitter",
    "runner": "",
    "runner.agent": "runner",
    "runner.legacy": "",
    "semconv": "LinkPydanticModel=emitter:LinkMatch RewardPydanticModel=emitter:NamedReward",
    "server": "",
    "store": "",
    "store.base": "lightning_legacy.names",
    "store.client_server": "lightning_http",
    "store.mongo": "lightning_mongo",
    "store.threading": "store",
    "tracer": "",
    "tracer.agentops": "lightning_agentops",
    "tracer.base": "lightning_legacy.tracers",
    "tracer.dummy": "tracer DummySpanRecordingContext=emitter.emission:LocalRecording",
    "tracer.otel": "lightning_legacy.processors",
    "tracer.weave": "lightning_weave",
    "trainer.trainer": "ComponentSpec=registry.registry:Spec",
    "types": "SpanLike=emitter:SpanLike SpanRecordingContext=emitter:SpanRecordingContext",
    "types.core": "types",
    "types.tracer": "types emitter lightning_legacy.names",
    "utils": "",
    "utils.id": "lightning_legacy.names",
    "utils.metrics": "lightning_http.metrics lightning_legacy.metrics",
    "utils.otel": "lightning_legacy.otel emitter",
    "utils.otlp": "lightning_legacy.otlp",
    "utils.server_launcher": "LaunchMode=lightning_legacy.names:LaunchMode "
    "PythonServerLauncherArgs=lightning_legacy.names:PythonServerLauncherArgs",
    "utils.system_snapshot": "runner.heartbeats",
    "verl": "lightning_verl",
}
"""For each path, where its names are: modules of the core, or of other packages, or `name=module:attribute`, where `*`
in the name stands for any letters.

Last come the names of `SUPPLIED`, for all of them.
"""


def find_module(fullname: str) -> ModuleSpec | None:
    """Return what makes a module of a path that the core does not have; None for one that 0.3 does not have either."""
    place = fullname.removeprefix(_PREFIX)
    if place not in PLACES:
        return None
    is_package = any(other.startswith(f"{place}.") for other in PLACES)
    return ModuleSpec(fullname, _Names(place), is_package=is_package)  # type: ignore[arg-type]  # it is duck-typed


def find_name(module: ModuleType, name: str) -> Any:
    """Return what a module of 0.3 has under a name, which the module of its path lacks.

    Raises:
        AttributeError: When 0.3 has none either.
    """
    place = module.__name__.removeprefix(_PREFIX)
    if f"{place}.{name}" in PLACES:
        return import_plugin(f"{_PREFIX}{place}.{name}", name)
    if place in PLACES:
        for source in PLACES[place].split():
            value = _found(source, name)
            if value is not None:
                setattr(module, name, value)
                return value
        if name in SUPPLIED:
            return supplied(name)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)


class _Names:
    """Makes a module that looks all names up."""

    def __init__(self, place: str) -> None:
        self._place = place

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> Any:
            if name == "__all__":
                return sorted({each for source in PLACES[self._place].split() for each in _names(source)})
            if name.startswith("_"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)
            return find_name(module, name)

        module.__doc__ = "Names of a module of agentlightning 0.3; see docs/migrating.md."
        module.__dict__["__dir__"] = lambda: find("__all__")
        module.__dict__["__getattr__"] = find
        plugin = PLACES[self._place].partition(" ")[0].partition(".")[0]
        if plugin.startswith("lightning_") and find_spec(plugin) is None:
            import_plugin(plugin, module.__name__)


def _found(source: str, name: str) -> Any:
    """Return what a source of the table has under a name; None for nothing."""
    former, renamed, place = source.rpartition("=")
    if renamed and not fnmatchcase(name, former):
        return None
    path, _, attribute = place.partition(":")
    if not path.startswith("lightning_"):
        path = _PREFIX + path
    return getattr(import_plugin(path, name), attribute or name, None)


def _names(source: str) -> list[str]:
    former, renamed, path = source.rpartition("=")
    if renamed:
        return [] if "*" in former else [former]
    module = import_plugin(path if path.startswith("lightning_") else _PREFIX + path, path)
    return getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
