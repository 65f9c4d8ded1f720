"""Calls and streams of AgentOps' instrumentation, so that they leave the agent's own code alone.

AgentOps makes a call's span current, and puts the former one back with a token that is good in one context only. A
call that is cancelled, and a stream, do not come back to where they began.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import Status, StatusCode

logger = logging.getLogger(__name__)

COMPLETION = "gen_ai.completion"
"""Prefix of what AgentOps records of a call's choices."""

_NO_FUNCTION = {"name": "", "arguments": ""}

Factory = Callable[[otel.Tracer], Callable[..., Any]]


FindParent = Callable[[], otel.Span | None]


def in_its_own_context(factory: Factory, find_parent: FindParent) -> Factory:
    """Let each call leave the context as it was, whatever its wrapper does to it.

    Args:
        factory: Makes the wrapper.
        find_parent: Returns the span that the call is part of; None for the current one.
    """

    @functools.wraps(factory)
    def make(tracer: otel.Tracer) -> Callable[..., Any]:
        record = factory(tracer)

        def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            with _own_context(find_parent):
                return record(wrapped, instance, args, kwargs)

        return call

    return make


def in_its_own_context_async(factory: Factory, find_parent: FindParent) -> Factory:
    """The same for a wrapper that is a coroutine function."""

    @functools.wraps(factory)
    def make(tracer: otel.Tracer) -> Callable[..., Any]:
        record = factory(tracer)

        async def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            with _own_context(find_parent):
                return await record(wrapped, instance, args, kwargs)

        return call

    return make


@contextmanager
def _own_context(find_parent: FindParent) -> Iterator[None]:
    outer = find_parent() or otel.get_current_span()
    token = attach(otel.set_span_in_context(outer))
    try:
        yield
    except BaseException as exc:
        span = otel.get_current_span()
        if span is not outer and span.is_recording():  # of a call that was cancelled: AgentOps has left it open
            _fail(span, exc)
            span.end()
        raise
    finally:
        detach(token)


def _fail(span: otel.Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error) or type(error).__name__))


class Choices:
    """What the choices of a streamed chat answer said so far. AgentOps runs their texts together, into the first."""

    def __init__(self) -> None:
        self.said: dict[int, list[str]] = {}
        self.reasons: dict[int, str] = {}
        self._calls: dict[int, dict[int, dict[str, str]]] = {}

    def add(self, chunk: Any) -> None:
        """Take in a chunk, as OpenAI's client has it."""
        for choice in chunk.choices or ():
            self.said.setdefault(choice.index, []).append(choice.delta.content or "")
            if choice.finish_reason:
                self.reasons[choice.index] = choice.finish_reason
            for part in choice.delta.tool_calls or ():
                call = self._calls.setdefault(choice.index, {}).setdefault(part.index, {"id": "", **_NO_FUNCTION})
                call["id"] = part.id or call["id"]
                if part.function is not None:
                    call["name"] = part.function.name or call["name"]
                    call["arguments"] += part.function.arguments or ""

    def attributes(self) -> dict[str, str]:
        """Return what AgentOps does not record: choices beyond the first, and tool calls."""
        found: dict[str, str] = {}
        for index, parts in self.said.items():
            prefix = f"{COMPLETION}.{index}"
            if index > 0:
                found |= {f"{prefix}.role": "assistant", f"{prefix}.content": "".join(parts)}
                if index in self.reasons:
                    found[f"{prefix}.finish_reason"] = self.reasons[index]
            found |= tool_call_attributes(index, [call for _, call in sorted(self._calls.get(index, {}).items())])
        return found


def tool_call_attributes(index: int, calls: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the attributes of a choice's tool calls, as AgentOps names those of a request's messages."""
    found: dict[str, str] = {}
    for position, call in enumerate(calls):
        prefix = f"{COMPLETION}.{index}.tool_calls.{position}"
        found |= {f"{prefix}.{name}": str(call.get(name) or "") for name in ("id", "name", "arguments")}
    return found


def closing(kind: Any) -> Any:
    """Make a kind of AgentOps' streams whose span ends once, however the stream does.

    It has everything else that the client's own stream has. Left before its end, it is recorded with what was read.
    """

    class Stream(kind):  # type: ignore[misc]
        def __init__(self, stream: Any, span: otel.Span, request_kwargs: Any) -> None:
            self._is_over = False
            self._choices = Choices()
            super().__init__(stream, span, request_kwargs)
            # So far nothing has been read: what follows in this context is not part of the call.
            detach(self._token)

        def __getattr__(self, name: str) -> Any:
            if name in ("_stream", "_span", "_is_over"):  # not yet made
                raise AttributeError(name)
            return getattr(self._stream, name)

        def _finalize_stream(self) -> None:
            if self._is_over:
                return
            self._is_over = True
            if not self._span.is_recording():
                return
            if self._choices.said:
                self._span.set_attributes(self._choices.attributes())
                self._content_chunks = self._choices.said.get(0, [])
                self._finish_reason = self._choices.reasons.get(0)
            # Detached by what is called here.
            self._token = attach(otel.set_span_in_context(self._span, get_current()))
            super()._finalize_stream()

        def _failed(self, error: BaseException) -> None:
            if not self._is_over:
                self._is_over = True
                _fail(self._span, error)
                self._span.end()

        def __next__(self) -> Any:
            try:
                item = next(self._stream)
            except StopIteration:
                self._finalize_stream()
                raise
            except BaseException as exc:
                self._failed(exc)
                raise
            self._take(item)
            return item

        async def __anext__(self) -> Any:
            try:
                item = await self._stream.__anext__()
            except StopAsyncIteration:
                self._finalize_stream()
                raise
            except BaseException as exc:
                self._failed(exc)
                raise
            self._take(item)
            return item

        def _take(self, item: Any) -> None:
            if not self._span.is_recording():
                return
            try:
                if hasattr(kind, "_process_chunk"):
                    self._process_chunk(item)
                    self._choices.add(item)
                else:
                    self._process_event(item)
            except Exception as exc:
                logger.warning("lightning.stream_not_read cause=%r; the span of this call lacks a part", exc)

        def __enter__(self) -> Any:
            self._stream.__enter__()
            return self

        def __exit__(self, error_type: Any, error: BaseException | None, traceback: Any) -> Any:
            self._left(error)
            return self._stream.__exit__(error_type, error, traceback)

        async def __aenter__(self) -> Any:
            await self._stream.__aenter__()
            return self

        async def __aexit__(self, error_type: Any, error: BaseException | None, traceback: Any) -> Any:
            self._left(error)
            return await self._stream.__aexit__(error_type, error, traceback)

        def _left(self, error: BaseException | None) -> None:
            if error is None:
                self._finalize_stream()
            else:
                self._failed(error)

        def close(self) -> Any:
            self._finalize_stream()
            return self._stream.close()

        def __del__(self) -> None:
            if not getattr(self, "_is_over", True):
                self._finalize_stream()

    Stream.__name__ = Stream.__qualname__ = kind.__name__
    return Stream
