"""What Weave's client takes for its service: it makes spans of the calls."""

import json
import re
import secrets
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_proxy.answer import Answer
from lightning_proxy.apis import DIALECTS, Dialect
from lightning_proxy.spans import Capture, attributes_of
from opentelemetry import trace as otel
from opentelemetry.context import attach, create_key, get_current, get_value, set_value

from lightning_core.adapter import genai
from lightning_core.emitter.attributes import describe
from lightning_core.errors import TracerError
from lightning_core.semconv import LightningSpanAttributes
from lightning_core.tracer import Trace, current_trace
from lightning_core.tracer.provider import RoutingProvider
from lightning_weave import private

if TYPE_CHECKING:
    from weave.trace.call import Call

CALL_ID = "weave.call_id"
DISPLAY_NAME = "weave.display_name"
KIND = "weave.kind"
"""What the op says that it is: `llm`, `tool`, `agent`, ..."""
ATTRIBUTES = "weave.attributes"
"""Prefix of what `weave.attributes` was given."""

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
_OP = re.compile(r"/op/([^/:]+):")
_CONVERSATION = frozenset({"messages", "tools", "input", "instructions", "system", "prompt", "model"})
"""What the GenAI attributes of a model call tell of its request."""
_NOT_ASKED = frozenset({"self", "_weave_stream_start_time"})
"""What Weave keeps among the inputs of a client's method, and no caller gave."""
_NOT_GIVEN = "NOT_GIVEN"
"""What Weave makes of OpenAI's mark of an argument that was left out."""
_WEAVES_OWN = frozenset({"weave", "integration"})
"""What Weave itself adds to the attributes of a call: versions, and what made it."""


def op_name(reference: str) -> str:
    """Return the name of an op, of `weave:///entity/project/op/name:digest`; anything else is the name itself."""
    match = _OP.search(reference)
    return match[1] if match else reference


def beginning(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a span has of a call that begins."""
    call_attributes: Mapping[str, Any] = start.get("attributes") or {}
    name = op_name(start["op_name"])
    attributes: dict[str, Any] = {_NAME: name, CALL_ID: start["id"]}
    if start.get("display_name") not in (None, name):
        attributes[DISPLAY_NAME] = start["display_name"]
    if kind := (call_attributes.get("weave") or {}).get("kind"):
        attributes[KIND] = kind
    user_attributes = {key: value for key, value in call_attributes.items() if key not in _WEAVES_OWN}
    return attributes | (describe(ATTRIBUTES, user_attributes) if user_attributes else {})


def ending(start: Mapping[str, Any], output: Any, failed: bool) -> dict[str, Any]:
    """Return what a span has of a call that ended: what went in, and what came out.

    A call of a model has the attributes that the model proxy gives it, so that everything that reads one reads the
    other.
    """
    inputs: dict[str, Any] = dict(start.get("inputs") or {})
    is_model_call = ((start.get("attributes") or {}).get("weave") or {}).get("kind") == "llm"
    dialect = _dialect(inputs, output, failed) if is_model_call else None
    if dialect is None:
        attributes = _described(_INPUT, inputs) | _described(_OUTPUT, output)
        if is_model_call:
            attributes[genai.OPERATION_NAME] = "chat"
            if isinstance(inputs.get("model"), str):
                attributes[genai.REQUEST_MODEL] = inputs["model"]
        return attributes
    rest = {
        name: value for name, value in inputs.items() if name not in _CONVERSATION | _NOT_ASKED and value != _NOT_GIVEN
    }
    return _described(_INPUT, rest) | _model_call(dialect, inputs, output)


def _described(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None or value == {} else describe(name, value)


def _dialect(request: Mapping[str, Any], output: Any, failed: bool) -> Dialect | None:
    """Find out which API was called, by the answer, or by the request of a call that has none."""
    answer = output if isinstance(output, Mapping) else {}
    if "choices" in answer:
        return DIALECTS["/chat/completions" if "messages" in request else "/completions"]
    if "messages" in request and isinstance(answer.get("content"), list):
        return DIALECTS["/messages"]
    if "input" in request and isinstance(answer.get("output"), list):
        return DIALECTS["/responses"]
    if "input" in request and isinstance(answer.get("data"), list):
        return DIALECTS["/embeddings"]
    return DIALECTS["/chat/completions"] if failed and "messages" in request else None


def _model_call(dialect: Dialect, request: dict[str, Any], output: Any) -> dict[str, Any]:
    answer = Answer()
    if isinstance(output, dict):
        answer = dialect.read(output)
    return attributes_of(dialect, request, answer, Capture())


_FRAME = create_key("lightning-weave-call")


@dataclass(frozen=True, slots=True)
class _OpenCall:
    span: otel.Span
    start: Mapping[str, Any]
    trace: Trace | None


class _Frame(NamedTuple):
    """That a context is inside of a call."""

    call_id: str
    span: otel.Span
    around: otel.Span
    """The span that was the current one before."""
    outer: "_Frame | None"


class RecordingServer:
    """Stands where Weave's client expects its service, in this process.

    A call becomes a span of the trace in which it begins; outside of traces it is not recorded. The client asks in
    the context of the traced function, so that the span can be the current one while the function runs. What only the
    service can answer is an error.
    """

    def __init__(self) -> None:
        self._provider = RoutingProvider()
        self._tracer = self._provider.get_tracer("weave")
        self._lock = threading.Lock()
        self._open: dict[str, _OpenCall] = {}

    # Calls

    def call_start(self, request: Mapping[str, Any]) -> Any:
        """Begin the span of a call."""
        start = request["start"]
        span = self._tracer.start_span(
            op_name(start["op_name"]), attributes=beginning(start), start_time=_nanoseconds(start["started_at"])
        )
        if span.is_recording():
            with self._lock:
                self._open[start["id"]] = _OpenCall(span, start, current_trace())
        return private.answer("CallStartResponse", id=start["id"], trace_id=start["trace_id"])

    def call_end(self, request: Mapping[str, Any]) -> object:
        """End the span of a call."""
        end = request["end"]
        with self._lock:
            call = self._open.pop(end["id"], None)
        if call is not None:
            failure = end.get("exception")
            call.span.set_attributes(ending(call.start, end.get("output"), failed=failure is not None))
            if failure is None:
                call.span.set_status(otel.Status(otel.StatusCode.OK))
            else:
                _fail(call.span, failure)
            call.span.end(_nanoseconds(end["ended_at"]))
        return object()

    def entered(self, call: "Call") -> None:
        """Make the span of a call the current one of the calling context."""
        with self._lock:
            known = self._open.get(call.id or "")
        if known is not None:
            context = get_current()
            frame = _Frame(call.id or "", known.span, otel.get_current_span(context), _frame_of(context))
            attach(otel.set_span_in_context(known.span, set_value(_FRAME, frame, context)))

    def left(self, call_id: str) -> None:
        """Make the span around a call the current one again, where that of the call, or of one in it, still is."""
        context = get_current()
        frame = _frame_of(context)
        if frame is None or otel.get_current_span(context) is not frame.span:
            return
        while frame is not None and frame.call_id != call_id:
            frame = frame.outer
        if frame is not None:
            attach(otel.set_span_in_context(frame.around, set_value(_FRAME, frame.outer, context)))

    def end_open(self, trace: Trace) -> None:
        """End the calls of a trace that is about to be closed: those that were cancelled, or run on in a thread."""
        with self._lock:
            left = {call_id: call for call_id, call in self._open.items() if call.trace is trace}
            for call_id in left:
                del self._open[call_id]
        for call in reversed(left.values()):
            call.span.set_attributes(ending(call.start, None, failed=True))
            description = "the call had not ended when its trace was left: it was cancelled, or runs on in a thread"
            call.span.set_status(otel.Status(otel.StatusCode.ERROR, description))
            call.span.end()

    def close(self) -> None:
        """Make no more spans."""
        self._provider.close()
        with self._lock:
            self._open.clear()

    # What calls refer to

    def obj_create(self, request: Mapping[str, Any]) -> Any:
        """Say under which digest the service has an object."""
        return private.answer(
            "ObjectCreateResponse", digest=private.digests().compute_object_digest(request["obj"]["val"])
        )

    def file_create(self, request: Mapping[str, Any]) -> Any:
        """Say under which digest the service has a file."""
        _, content = request["file"]
        return private.answer("FileCreateResponse", digest=private.digests().compute_file_digest(content))

    def table_create(self, request: Mapping[str, Any]) -> Any:
        """Say under which digest the service has a table."""
        rows = [private.digests().compute_row_digest(row) for row in request["table"]["rows"]]
        return private.answer(
            "TableCreateResponse", digest=private.digests().compute_table_digest(rows), row_digests=rows
        )

    def table_create_from_digests(self, request: Mapping[str, Any]) -> Any:
        """Say under which digest the service has a table of rows that it knows."""
        return private.answer(
            "TableCreateFromDigestsResponse", digest=private.digests().compute_table_digest(request["row_digests"])
        )

    def feedback_create(self, request: Mapping[str, Any]) -> Any:
        """Record nothing: feedback is about what the service keeps."""
        fields = {"id": request.get("id") or secrets.token_hex(16), "created_at": datetime.now(UTC)}
        return private.answer("FeedbackCreateResponse", **fields, wb_user_id="", payload=dict(request["payload"]))

    def __getattr__(self, name: str) -> Any:
        """Refuse what only the service can answer."""
        if name not in private.server_methods():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise TracerError(
                f"Weave's service was asked for {name!r}, and the tracer 'weave' works offline; leave that out"
            )

        return refuse


def _frame_of(context: Any) -> _Frame | None:
    frame = get_value(_FRAME, context)
    return frame if isinstance(frame, _Frame) else None


def _fail(span: otel.Span, failure: str) -> None:
    """Say on a span what Weave says of an exception: JSON of its type, its message and its frames."""
    try:
        error = json.loads(failure)
    except ValueError:
        error = None
    if not isinstance(error, dict):
        error = {"message": failure}
    kind, message, frames = error.get("type"), error.get("message"), error.get("traceback")
    known = {"exception.type": kind, "exception.message": message, "exception.stacktrace": _stack(frames)}
    span.add_event("exception", {name: str(value) for name, value in known.items() if value})
    span.set_status(otel.Status(otel.StatusCode.ERROR, str(message or kind or failure)))


def _stack(frames: Any) -> str:
    """Write frames as Python does."""
    names = ("filename", "line_number", "function_name", "text")
    return "".join(traceback.format_list([tuple(frame.get(name) for name in names) for frame in frames or ()]))


def _nanoseconds(moment: Any) -> int:
    at: datetime = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return round(at.timestamp() * 1_000_000) * 1_000
