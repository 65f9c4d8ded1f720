"""All names inside of the agentops package that are used here, which are not public: made for agentops 0.4.21.

Its instrumentation is switched on with a provider of ours, without `agentops.init()`, which would ask its service.
While it is on, a few of its functions are replaced, because they change what the agent does or lose what it did:

- its instrumentor of LangGraph, which is left out;
- its rule that the first agent framework switches the recording of model clients off;
- its way with openai 2 and later, where it stops at a module that is gone, before the Responses API;
- the request's `stream_options`, which it sets, so that an agent gets chunks that it did not ask for;
- request headers, which it records, and which have keys in them;
- messages that are objects of the client, and tool calls of answers, which it leaves out;
- streams: its own cannot be closed, one that is not read to its end is never recorded, and choices run together;
- the context of a call that is cancelled, or of a stream, which it leaves behind for the calls that follow.

What its instrumentors do not take back when they are switched off is taken back here.
"""

import builtins
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace as otel
from wrapt import FunctionWrapper, wrap_function_wrapper  # type: ignore[import-untyped]

from lightning_agentops.streams import closing, in_its_own_context, in_its_own_context_async, tool_call_attributes
from lightning_core.errors import TracerError

logger = logging.getLogger(__name__)

KNOWN_VERSION = "0.4.21"

CORE = "agentops.sdk.core"
INSTRUMENTATION = "agentops.instrumentation"
OPENAI = "agentops.instrumentation.providers.openai.instrumentor"
STREAMS = "agentops.instrumentation.providers.openai.stream_wrapper"
CHAT = "agentops.instrumentation.providers.openai.wrappers.chat"

NAMES: Mapping[str, tuple[str, ...]] = {
    CORE: ("tracer",),
    INSTRUMENTATION: (
        *("instrument_all", "PROVIDERS", "TARGET_PACKAGES"),
        *("_active_instrumentors", "_has_agentic_library", "_instrumenting_packages"),
        *("_import_monitor", "_is_installed_package", "_original_builtins_import", "_perform_instrumentation"),
        "_uninstrument_providers",
    ),
    OPENAI: (
        *("chat_completion_stream_wrapper", "async_chat_completion_stream_wrapper"),
        *("responses_stream_wrapper", "async_responses_stream_wrapper"),
    ),
    STREAMS: (
        *("OpenaiStreamWrapper", "OpenAIAsyncStreamWrapper", "ResponsesAPIStreamWrapper"),
        *("handle_chat_attributes", "is_metrics_enabled"),
    ),
    CHAT: ("get_tracer", "AgentOpsSpanKindValues"),
}
"""The module -> what is read or replaced in it."""

TRACER_NAMES = ("provider", "_initialized", "get_tracer")
"""The same of its one tracer, `agentops.sdk.core.tracer`."""

STREAM_PARTS: Mapping[str, tuple[str, ...]] = {
    "OpenaiStreamWrapper": ("_process_chunk", "_finalize_stream"),
    "OpenAIAsyncStreamWrapper": ("_process_chunk", "_finalize_stream"),
    "ResponsesAPIStreamWrapper": ("_process_event", "_finalize_stream"),
}
"""The methods of its stream classes that `streams.closing` calls and overrides."""

STREAM_FIELDS = ("_stream", "_span", "_token", "_content_chunks")
"""What an object of these classes has, and `streams.closing` uses; one of chat also `_finish_reason`."""

SPAN_EXPORTER = "AuthenticatedOTLPExporter"
METRIC_EXPORTER = "OTLPMetricExporter"
"""What `agentops.init()` exports with, in `CORE`; replaced only in programs that `program` repairs."""

LEFT_OUT: Mapping[str, str] = {
    "langgraph": "its nodes would be called without their config, and tool nodes are refused; its model calls are "
    "recorded by their client"
}
"""Instrumentors that break the agent, and how."""

OPENAI_CALLS = (
    ("openai.resources.chat.completions", "Completions", "parse", "chat_completion_stream_wrapper"),
    ("openai.resources.chat.completions", "AsyncCompletions", "parse", "async_chat_completion_stream_wrapper"),
    ("openai.resources.responses", "Responses", "create", "responses_stream_wrapper"),
    ("openai.resources.responses", "AsyncResponses", "create", "async_responses_stream_wrapper"),
)
"""What AgentOps does not come to: it looks for `parse` where openai 1 had it, and gives up there."""

EAGER = ("openai", "anthropic", "google.genai")
"""Clients that are imported when the recording begins. A client that agents import for the first time in several
threads at once is not instrumented yet for the first calls of all but one of them."""


class Instrumentation:
    """AgentOps' instrumentation of this process, once for all tracers.

    Args:
        provider: What its spans are made with.
    """

    def __init__(self, provider: otel.TracerProvider) -> None:
        self._provider = provider
        self._replaced: list[tuple[Any, str, Any]] = []
        self._application: otel.TracerProvider | None = None
        self._import: Any = None
        self._processors: Any = None
        self._done: set[str] = set()

    def start(self) -> None:
        """Switch it on.

        Raises:
            TracerError: When the installed agentops is not one that is known.
        """
        check_names()
        for name in EAGER:
            _import_if_installed(name)
        instrumentation = part(INSTRUMENTATION)
        core = part(CORE).tracer
        self._import = builtins.__import__
        self._processors = _agents_processors()
        if core._initialized:
            # The application has called agentops.init(); what it made is put back in the end.
            self._application = core.provider
            _switch_off(instrumentation)
        try:
            self._replace_all(instrumentation, core)
            instrumentation.instrument_all()
            self.catch_up()
        except BaseException:
            self.stop()
            raise

    def catch_up(self) -> None:
        """Instrument what AgentOps did not see.

        That is what was imported without an import statement, or lies elsewhere than in
        a folder `site-packages`.
        """
        if not self._replaced:
            return
        instrumentation = part(INSTRUMENTATION)
        for package in instrumentation.TARGET_PACKAGES - self._done - LEFT_OUT.keys():
            if package in sys.modules:
                instrumentation._perform_instrumentation(package)

    def stop(self) -> None:
        """Switch it off, and leave everything as it was found."""
        instrumentation = part(INSTRUMENTATION)
        _switch_off(instrumentation)
        self._done.clear()
        while self._replaced:
            holder, name, former = self._replaced.pop()
            if former is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, former)
        if self._processors is not None:
            _set_agents_processors(self._processors)
        if self._application is not None:
            self._application = None
            instrumentation.instrument_all()
        elif builtins.__import__ in (instrumentation._original_builtins_import, instrumentation._import_monitor):
            builtins.__import__ = self._import

    @property
    def application(self) -> otel.TracerProvider | None:
        """The provider of an application that has called `agentops.init()` before; None without one."""
        return self._application

    def _replace_all(self, instrumentation: Any, core: Any) -> None:
        provider = self._provider

        def get_tracer(name: str = "agentops", *scope: Any, **options: Any) -> otel.Tracer:
            return provider.get_tracer(name, *scope, **options)

        self._replace(core, "provider", provider)
        self._replace(core, "_initialized", True)
        self._replace(core, "get_tracer", get_tracer)
        self._replace(instrumentation, "_perform_instrumentation", self._each_whole(instrumentation))
        self._replace(instrumentation, "_uninstrument_providers", _nothing)
        streams = part(STREAMS)
        for name in STREAM_PARTS:
            self._replace(streams, name, closing(getattr(streams, name)))
        self._replace(streams, "handle_chat_attributes", _careful(streams.handle_chat_attributes))
        self._replace(streams, "is_metrics_enabled", lambda: False)
        chat = part(CHAT)
        self._replace(chat, "get_tracer", get_tracer)
        # No attribute can have a member of an enumeration.
        kinds = {kind.name: kind.value for kind in chat.AgentOpsSpanKindValues}
        self._replace(chat, "AgentOpsSpanKindValues", SimpleNamespace(**kinds))
        openai = part(OPENAI)
        for name in ("chat_completion_stream_wrapper", "responses_stream_wrapper"):
            self._replace(openai, name, in_its_own_context(getattr(openai, name), _generation_of_agents))
            name = f"async_{name}"
            self._replace(openai, name, in_its_own_context_async(getattr(openai, name), _generation_of_agents))

    def _each_whole(self, instrumentation: Any) -> Callable[[str], None]:
        """Instrument each library, whatever else is: AgentOps itself stops at the first framework."""
        perform = instrumentation._perform_instrumentation

        def perform_each(package: str) -> None:
            module = sys.modules.get(package)
            # What is half imported cannot be instrumented, and AgentOps tries only once.
            if package in LEFT_OUT or package in self._done or module is None or _is_importing(module):
                return
            # Somebody's own module may be called `agents`.
            if package not in instrumentation.PROVIDERS and not instrumentation._is_installed_package(module, package):
                return
            self._done.add(package)
            perform(package)
            instrumentation._has_agentic_library = False
            if package == "openai":
                self._wrap_rest_of_openai()

        return perform_each

    def _wrap_rest_of_openai(self) -> None:
        factories = part(OPENAI)
        for module, owner, name, factory in OPENAI_CALLS:
            try:
                found = getattr(importlib.import_module(module), owner)
                known = inspect.getattr_static(found, name)
            except (ImportError, AttributeError):
                logger.debug(
                    "lightning.call_not_recorded name=%s.%s.%s; this openai does not have it", *(module, owner, name)
                )
                continue
            if not isinstance(known, FunctionWrapper) or not _is_of_agentops(known):
                record = getattr(factories, factory)(self._provider.get_tracer(f"{INSTRUMENTATION}.openai"))
                wrap_function_wrapper(module, f"{owner}.{name}", record)

    def _replace(self, holder: Any, name: str, value: Any) -> None:
        self._replaced.append((holder, name, vars(holder).get(name, _ABSENT)))
        setattr(holder, name, value)


def check_names() -> None:
    """Make sure that the installed agentops has what is needed.

    Raises:
        TracerError: Says what it lacks.
    """
    for module, names in NAMES.items():
        for name in names:
            _require(part(module), name, module)
    for name in TRACER_NAMES:
        _require(part(CORE).tracer, name, f"{CORE}.tracer")
    for kind, names in STREAM_PARTS.items():
        for name in names:
            _require(getattr(part(STREAMS), kind), name, f"{STREAMS}.{kind}")


def _require(holder: Any, name: str, called: str) -> None:
    if not hasattr(holder, name):
        raise TracerError(
            f"agentops {_installed_version()} has no {called}.{name}; lightning-agentops is made for {KNOWN_VERSION}: "
            f"pip install agentops=={KNOWN_VERSION}"
        )


def part(name: str) -> Any:
    """Return a module of agentops.

    Raises:
        TracerError: When it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        installed = _installed_version()
        advice = f"lightning-agentops is made for {KNOWN_VERSION}: pip install agentops=={KNOWN_VERSION}"
        if installed == KNOWN_VERSION:
            advice = "install the module that it lacks"
        raise TracerError(f"{name} of agentops {installed} cannot be imported: {exc}; {advice}") from exc


def _installed_version() -> str:
    try:
        return version("agentops")
    except PackageNotFoundError:
        return "(not installed)"


def _import_if_installed(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return
    except Exception as exc:
        logger.warning("lightning.client_not_recorded module=%s cause=%r; it cannot be imported", name, exc)


def _is_importing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


_ABSENT = object()


def _nothing() -> None:
    """Leave the model clients instrumented beside an agent framework."""


def _careful(handle: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Read a call without its headers, and never with an error for the agent that makes it."""

    def handle_carefully(
        args: Any = None, kwargs: Mapping[str, Any] | None = None, return_value: Any = None, span: Any = None
    ) -> dict[str, Any]:
        try:
            plain = None if kwargs is None else _plain(kwargs)
            answer = _readable(return_value)
            read = handle(args=args, kwargs=plain, return_value=answer, span=span)
            return read | _tool_calls(answer)
        except Exception as exc:
            logger.warning("lightning.call_not_read cause=%r; the span of this call lacks what was said", exc)
            return {}

    return handle_carefully


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, as JSON would have it; not what the client calls not given."""
    fields = {
        name: value
        for name, value in kwargs.items()
        if name not in ("extra_headers", "headers") and type(value).__name__ not in ("NotGiven", "Omit")
    }
    if isinstance(fields.get("messages"), (list, tuple)):
        fields["messages"] = [_dumped(message) for message in fields["messages"]]
    else:
        fields.pop("messages", None)  # an iterator can be read only once, and that is for the client
    return fields


def _readable(answer: Any) -> Any:
    """Return what can be read of an answer without reading it in the agent's stead."""
    if not hasattr(answer, "parse"):
        return answer
    # A raw response has its body, and gives the same each time. That of `with_streaming_response` has not.
    return answer.parse() if type(answer).__name__ == "LegacyAPIResponse" else None


def _tool_calls(answer: Any) -> dict[str, str]:
    """Read the tool calls of an answer into attributes. AgentOps makes spans of them, which tell no choice."""
    found: dict[str, str] = {}
    for choice in getattr(answer, "choices", None) or ():
        calls = [call for call in choice.message.tool_calls or () if getattr(call, "function", None) is not None]
        named = [{"id": call.id, "name": call.function.name, "arguments": call.function.arguments} for call in calls]
        found |= tool_call_attributes(choice.index, named)
    return found


def _dumped(message: Any) -> Any:
    return message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message


# Switching off


def _switch_off(instrumentation: Any) -> None:
    if builtins.__import__ is instrumentation._import_monitor:
        builtins.__import__ = instrumentation._original_builtins_import
    packages = tuple(instrumentation.TARGET_PACKAGES)
    # An instrumentor takes away the outermost wrapper, whosever it is. So what is to be left is found before.
    wanted = [(holder, name, _without_agentops(wrapper)) for holder, name, wrapper in left_wrapped(packages)]
    for instrumentor in list(instrumentation._active_instrumentors):
        try:
            instrumentor.uninstrument()
        except Exception as exc:
            logger.debug("lightning.instrumentor_not_undone name=%s cause=%r", type(instrumentor).__name__, exc)
    instrumentation._active_instrumentors = []
    instrumentation._has_agentic_library = False
    instrumentation._instrumenting_packages.clear()
    for holder, name, value in wanted:
        setattr(holder, name, value)


def left_wrapped(packages: tuple[str, ...]) -> Iterator[tuple[Any, str, FunctionWrapper]]:
    """Find functions of these packages that AgentOps still wraps: where, the name, and the outermost wrapper."""
    prefixes = tuple(f"{package}." for package in packages)
    for module_name, module in list(sys.modules.items()):
        if module_name not in packages and not module_name.startswith(prefixes):
            continue
        # Not by getattr, which would make a lazy module import what it has.
        for value in list(getattr(module, "__dict__", {}).values()):
            if isinstance(value, type) and value.__module__ == module_name:
                yield from _wrapped_in(value)
        yield from _wrapped_in(module)


def _wrapped_in(holder: Any) -> Iterator[tuple[Any, str, FunctionWrapper]]:
    for name, value in list(vars(holder).items()):
        wrapper = value
        while isinstance(wrapper, FunctionWrapper):
            if _is_of_agentops(wrapper):
                yield holder, name, value
                break
            wrapper = wrapper.__wrapped__


def _is_of_agentops(wrapper: FunctionWrapper) -> bool:
    module = getattr(wrapper._self_wrapper, "__module__", None) or ""
    return module.partition(".")[0] in ("agentops", "lightning_agentops")


def _without_agentops(outermost: FunctionWrapper) -> Any:
    """Remove AgentOps' wrappers of a function, and leave those of others: return what is the outermost one then."""
    left = outermost
    while isinstance(left, FunctionWrapper) and _is_of_agentops(left):
        left = left.__wrapped__
    inner = left
    while isinstance(inner, FunctionWrapper):
        below = inner.__wrapped__
        while isinstance(below, FunctionWrapper) and _is_of_agentops(below):
            below = below.__wrapped__
        if below is not inner.__wrapped__:
            inner.__wrapped__ = below
        inner = below
    return left


# The OpenAI Agents SDK


def _generation_of_agents() -> otel.Span | None:
    """Find the span of the Agents SDK that a model call lies in: AgentOps does not make its spans current."""
    tracing = sys.modules.get("agents.tracing")
    current = None if tracing is None else tracing.get_current_span()
    if current is None or getattr(current.span_data, "type", None) not in ("generation", "response"):
        return None
    for instrumentor in part(INSTRUMENTATION)._active_instrumentors:
        exporter = getattr(instrumentor, "_exporter", None)
        found: otel.Span | None = getattr(exporter, "_span_map", {}).get(f"span:{current.trace_id}:{current.span_id}")
        if found is not None:
            return found
    return None


def _agents_processors() -> Any:
    # AgentOps replaces what the SDK's traces go to, and in the end it puts the SDK's default there, which sends them to
    # OpenAI, whatever was there before.
    tracing = sys.modules.get("agents.tracing")
    provider = None if tracing is None else tracing.get_trace_provider()
    return getattr(getattr(provider, "_multi_processor", None), "_processors", None)


def _set_agents_processors(processors: Any) -> None:
    tracing = sys.modules.get("agents.tracing")
    if tracing is not None:
        tracing.get_trace_provider().set_processors(list(processors))
