"""AgentOps' instrumentation, with a provider of ours in the place of `agentops.init()`, which would ask its service.

The names used here are not public: they are those of agentops 0.4.21. Whatever AgentOps does to the agent or to its
secrets is prevented; whatever it records wrongly stays, and the README lists it.
"""

import importlib
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace as otel
from wrapt import wrap_function_wrapper  # type: ignore[import-untyped]

from lightning_core.errors import TracerError
from lightning_core.tracer.provider import RoutingProvider

logger = logging.getLogger(__name__)

KNOWN_VERSION = "0.4.21"

CORE = "agentops.sdk.core"
INSTRUMENTATION = "agentops.instrumentation"
OPENAI = "agentops.instrumentation.providers.openai.instrumentor"
STREAMS = "agentops.instrumentation.providers.openai.stream_wrapper"
CHAT = "agentops.instrumentation.providers.openai.wrappers.chat"

OPENAI_CALLS = (
    ("openai.resources.chat.completions", "Completions.parse", "chat_completion_stream_wrapper"),
    ("openai.resources.chat.completions", "AsyncCompletions.parse", "async_chat_completion_stream_wrapper"),
    ("openai.resources.responses", "Responses.create", "responses_stream_wrapper"),
    ("openai.resources.responses", "AsyncResponses.create", "async_responses_stream_wrapper"),
)
"""What AgentOps does not come to: it looks for `parse` where openai 1 had it, and gives up there."""

_HANDLERS = ("handle_completion_attributes", "handle_embeddings_attributes", "handle_image_gen_attributes")
_STREAM_CLASSES = ("OpenaiStreamWrapper", "OpenAIAsyncStreamWrapper", "ResponsesAPIStreamWrapper")


class Instrumentation:
    """Switches AgentOps' instrumentation on, once for all tracers of this process. It stays on.

    Args:
        provider: Makes its spans. Calls for which it has no target are passed on unrecorded.
    """

    def __init__(self, provider: RoutingProvider) -> None:
        self._provider = provider
        self._is_on = False
        self._done: set[str] = set()

    def start(self) -> None:
        """Switch it on, unless it is.

        Raises:
            TracerError: When another version of agentops is installed, or the program has called `agentops.init()`.
        """
        if self._is_on:
            return
        installed = version("agentops")
        if installed != KNOWN_VERSION:
            raise TracerError(
                f"lightning-agentops is made for agentops {KNOWN_VERSION}, got {installed}: "
                f"pip install agentops=={KNOWN_VERSION}"
            )
        core, instrumentation = part(CORE).tracer, part(INSTRUMENTATION)
        if core._initialized:
            raise TracerError(
                "this program has called agentops.init(), so its spans go to AgentOps and not to the store; remove "
                "that call (the tracer 'agentops' needs none), or use the tracer 'otel'"
            )
        provider = self._provider
        core.provider, core._initialized = provider, True
        core.get_tracer = lambda name="agentops": provider.get_tracer(name)
        self._leave_agents_alone()
        # Its nodes would be called without their config, and tool nodes are refused.
        instrumentation.TARGET_PACKAGES.discard("langgraph")
        instrumentation._uninstrument_providers = lambda: None
        instrumentation._perform_instrumentation = self._instrument_each(instrumentation)
        instrumentation.instrument_all()
        self._is_on = True

    def catch_up(self) -> None:
        """Instrument what was imported without an import statement, which AgentOps does not see."""
        instrumentation = part(INSTRUMENTATION)
        for package in instrumentation.TARGET_PACKAGES - self._done:
            if package in sys.modules:
                instrumentation._perform_instrumentation(package)

    def _leave_agents_alone(self) -> None:
        streams, chat, openai = part(STREAMS), part(CHAT), part(OPENAI)
        streams.is_metrics_enabled = lambda: False  # else it sets `stream_options`
        streams.handle_chat_attributes = _careful(streams.handle_chat_attributes)
        for name in _HANDLERS:
            setattr(openai, name, _careful(getattr(openai, name)))
        for name in _STREAM_CLASSES:
            getattr(streams, name).__getattr__ = _of_stream
        chat.get_tracer = self._provider.get_tracer
        chat.AgentOpsSpanKindValues = SimpleNamespace(TOOL="tool")  # an enumeration's member is no attribute
        for kind in ("chat_completion_stream_wrapper", "responses_stream_wrapper"):
            for name in (kind, f"async_{kind}"):
                setattr(openai, name, self._in_traces(getattr(openai, name)))

    def _in_traces(self, factory: Callable[[otel.Tracer], Callable[..., Any]]) -> Callable[..., Any]:
        """Leave calls outside of our traces as they are, their streams included; and the context as it was."""

        def make(tracer: otel.Tracer) -> Callable[..., Any]:
            record = factory(tracer)

            def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
                if self._provider.target(None) is None:
                    return wrapped(*args, **kwargs)
                parent = _generation_of_agents() or otel.get_current_span()
                with _current(parent):
                    answer = record(wrapped, instance, args, kwargs)
                return _await_in(parent, answer) if inspect.isawaitable(answer) else answer

            return call

        return make

    def _instrument_each(self, instrumentation: Any) -> Callable[[str], None]:
        """Instrument each library, whatever else is: AgentOps itself stops at the first framework."""
        perform = instrumentation._perform_instrumentation

        def perform_each(package: str) -> None:
            module = sys.modules.get(package)
            if package in self._done or package not in instrumentation.TARGET_PACKAGES or module is None:
                return
            # What is half imported cannot be instrumented, and AgentOps tries only once.
            if getattr(module.__spec__, "_initializing", False):
                return
            # The agent's own module may be called `agents`.
            if not instrumentation._is_installed_package(module, package):
                return
            self._done.add(package)
            perform(package)
            instrumentation._has_agentic_library = False
            if package == "openai":
                tracer = self._provider.get_tracer(f"{INSTRUMENTATION}.openai")
                for place, name, factory in OPENAI_CALLS:
                    wrap_function_wrapper(place, name, getattr(part(OPENAI), factory)(tracer))

        return perform_each


def part(name: str) -> Any:
    """Return a module of agentops.

    Raises:
        TracerError: When it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise TracerError(f"{name} of agentops cannot be imported: {exc}; install the module that it lacks") from exc


@contextmanager
def _current(span: otel.Span) -> Iterator[None]:
    with otel.use_span(span, record_exception=False, set_status_on_exception=False):
        yield


async def _await_in(parent: otel.Span, answer: Awaitable[Any]) -> Any:
    with _current(parent):
        return await answer


def _generation_of_agents() -> otel.Span | None:
    """Find the span of the Agents SDK that a model call lies in: AgentOps does not make it current.

    Without it each of these calls would count twice.
    """
    tracing = sys.modules.get("agents.tracing")
    current = None if tracing is None else tracing.get_current_span()
    if current is None or getattr(current.span_data, "type", None) not in ("generation", "response"):
        return None
    for instrumentor in part(INSTRUMENTATION)._active_instrumentors:
        spans = getattr(getattr(instrumentor, "_exporter", None), "_span_map", {})
        span: otel.Span | None = spans.get(f"span:{current.trace_id}:{current.span_id}")
        if span is not None:
            return span
    return None


def _of_stream(self: Any, name: str) -> Any:
    """Find what AgentOps' streams lack, `close` and `response` among it, at the client's own."""
    if name == "_stream":
        raise AttributeError(name)
    return getattr(self._stream, name)


def _careful(handle: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Read a call without its headers, which have keys in them, and never with an error for the agent."""

    def handle_carefully(
        args: Any = None, kwargs: Mapping[str, Any] | None = None, return_value: Any = None, **options: Any
    ) -> dict[str, Any]:
        try:
            # A raw response gives the same each time; that of `with_streaming_response` is the agent's to read.
            if hasattr(return_value, "parse"):
                return_value = return_value.parse() if type(return_value).__name__ == "LegacyAPIResponse" else None
            asked = None if kwargs is None else _plain(kwargs)
            return handle(args=args, kwargs=asked, return_value=return_value, **options) | _tool_calls(return_value)
        except Exception as exc:
            logger.warning("lightning.call_not_read cause=%r; the span of this call lacks what was said", exc)
            return {}

    return handle_carefully


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, as JSON would have it; without headers, and what the client calls not given."""
    fields = {
        name: value
        for name, value in kwargs.items()
        if name not in ("extra_headers", "headers") and type(value).__name__ not in ("NotGiven", "Omit")
    }
    messages = fields.pop("messages", None)
    if isinstance(messages, (list, tuple)):  # an iterator can be read only once, and that is for the client
        fields["messages"] = [
            each.model_dump(exclude_none=True) if hasattr(each, "model_dump") else each for each in messages
        ]
    return fields


def _tool_calls(answer: Any) -> dict[str, str]:
    """Read the tool calls of an answer into attributes. AgentOps makes spans of them, which tell no choice."""
    attributes: dict[str, str] = {}
    for choice in getattr(answer, "choices", None) or ():
        for number, call in enumerate(getattr(getattr(choice, "message", None), "tool_calls", None) or ()):
            prefix = f"gen_ai.completion.{choice.index}.tool_calls.{number}"
            if getattr(call, "function", None) is not None:
                values = {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
                attributes |= {f"{prefix}.{name}": str(value or "") for name, value in values.items()}
    return attributes
