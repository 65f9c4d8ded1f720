"""Module paths of agentlightning 0.3: `lightning_core.types.core` is found, and has the names that it had there.

A path that this package has no module for becomes one when it is imported. To a module that is here, the names are
added that it lacks. Both look them up, when they are first used, in the places of one table.
"""

import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lightning_core.compat import OLD_NAMES, import_plugin, supplied

if TYPE_CHECKING:
    # Not to be imported: that takes as long as the rest of this package.
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object

_PREFIX = "lightning_core."

PLACES: Final[dict[str, str]] = {
    "adapter": "TraceTripletAdapter=adapter:TracerTraceToTriplet BaseTraceTripletAdapter=adapter:TraceToTripletBase "
    "LlmProxyTripletAdapter=adapter:LlmProxyTraceToTriplet TraceMessagesAdapter=adapter:TraceToMessages",
    "adapter.messages": "adapter TraceMessagesAdapter=adapter:TraceToMessages",
    "adapter.triplet": "TraceTree=compat.trees:TraceTree adapter TraceTripletAdapter=adapter:TracerTraceToTriplet "
    "BaseTraceTripletAdapter=adapter:TraceToTripletBase LlmProxyTripletAdapter=adapter:LlmProxyTraceToTriplet",
    "algorithm": "compat.algorithms",
    "algorithm.apo": "lightning_apo",
    "algorithm.apo.apo": "lightning_apo compat.algorithms",
    "algorithm.base": "algorithm",
    "algorithm.decorator": "AlgorithmFunc*=compat.names:Function",
    "algorithm.fast": "algorithm",
    "algorithm.utils": "compat.algorithms",
    "algorithm.verl": "lightning_verl",
    "algorithm.verl.interface": "lightning_verl",
    "client": "lightning_legacy",
    "config": "compat.command_line",
    "contrib": "",
    "contrib.reward": "",
    "contrib.reward.agentos": "lightning_agentos",
    "contrib.runner": "",
    "contrib.runner.agentos": "lightning_agentos",
    "emitter.annotation": "emitter",
    "emitter.exception": "emitter",
    "emitter.object": "emitter",
    "emitter.reward": "emitter",
    "env_var": "compat.command_line",
    "execution": "",
    "execution.client_server": "",
    "execution.events": "execution",
    "execution.shared_memory": "execution",
    "instrumentation": "instrument_all=compat.processors:instrument_all "
    "uninstrument_all=compat.processors:uninstrument_all",
    "litagent": "agent",
    "litagent.decorator": "agent.decorators agent *RolloutFunc*=compat.names:Function "
    "FunctionalLitAgentFunc=compat.names:Function",
    "litagent.litagent": "agent",
    "llm_proxy": "lightning_proxy",
    "logging": "logs setup=logs:setup_logging setup_module=logs:setup_module_logging",
    "reward": "emitter",
    "runner": "",
    "runner.agent": "runner",
    "runner.legacy": "lightning_legacy",
    "semconv": "LinkPydanticModel=emitter:LinkMatch RewardPydanticModel=emitter:NamedReward",
    "server": "lightning_legacy",
    "store": "",
    "store.base": "compat.names",
    "store.client_server": "lightning_http",
    "store.mongo": "lightning_mongo",
    "store.threading": "store",
    "tracer": "",
    "tracer.agentops": "lightning_agentops compat.processors",
    "tracer.base": "compat.tracers",
    "tracer.dummy": "tracer DummySpanRecordingContext=emitter.emission:LocalRecording",
    "tracer.otel": "compat.processors",
    "tracer.weave": "lightning_weave",
    "trainer.trainer": "ComponentSpec=registry.registry:Spec",
    "types": "SpanLike=emitter:SpanLike SpanRecordingContext=emitter:SpanRecordingContext",
    "types.core": "types",
    "types.tracer": "types emitter compat.names",
    "utils": "",
    "utils.id": "compat.names",
    "utils.metrics": "lightning_http.metrics lightning_legacy.metrics",
    "utils.otel": "compat.otel emitter",
    "utils.otlp": "compat.otlp",
    "utils.server_launcher": "LaunchMode=compat.names:LaunchMode "
    "PythonServerLauncherArgs=compat.names:PythonServerLauncherArgs",
    "utils.system_snapshot": "runner.heartbeats",
    "verl": "lightning_verl",
}
"""For each path, where its names are: modules of this package, or plugins, or `name=module:attribute`, where `*` in the
name stands for any letters.

Last come the names of `OLD_NAMES`, for all of them.
"""


def install() -> None:
    """Let the paths be found. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = fullname.removeprefix(_PREFIX)
        if place == fullname or place not in PLACES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            is_package = any(other.startswith(f"{place}.") for other in PLACES)
            return ModuleSpec(fullname, _Names(place, None), is_package=is_package)
        spec.loader = _Names(place, spec.loader)
        return spec


class _Names(Loader):
    """Runs the module that is there, if there is one, and lets it look up what it lacks."""

    def __init__(self, place: str, loader: "Loader | None") -> None:
        self._place = place
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._loader is None else self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        own: Callable[[str], Any] | None = None
        if self._loader is not None:
            # Whoever reads the module's source asks the loader that has it.
            module.__loader__ = self._loader
            assert module.__spec__ is not None
            module.__spec__.loader = self._loader
            self._loader.exec_module(module)
            own = module.__dict__.get("__getattr__")
        else:
            module.__doc__ = "Names of a module of agentlightning 0.3; see docs/migrating.md."
            module.__dict__["__dir__"] = lambda: module.__all__
            plugin = PLACES[self._place].partition(" ")[0].partition(".")[0]
            if plugin.startswith("lightning_") and find_spec(plugin) is None:
                import_plugin(plugin, module.__name__)
        module.__dict__["__getattr__"] = _lookup(self._place, own, module)


def _lookup(place: str, own: Callable[[str], Any] | None, module: ModuleType) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        if own is not None:
            try:
                return own(name)
            except AttributeError:
                pass
        if name == "__all__" and module.__spec__ and module.__spec__.origin is None:
            return sorted({each for source in PLACES[place].split() for each in _names(source)})
        if not name.startswith("_"):
            if f"{place}.{name}" in PLACES:
                return import_plugin(f"{_PREFIX}{place}.{name}", name)
            for source in PLACES[place].split():
                found = _found(source, name)
                if found is not None:
                    setattr(module, name, found)
                    return found
            if name in OLD_NAMES:
                return supplied(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)

    return find


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
