"""Files that tracing products export, as traces: a task, its spans and its scores.

The forms are those of Langfuse (a trace's JSON, the public API, and the blob storage export,
https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields), Phoenix (its REST API and
`get_spans_dataframe().to_json(orient="records")`), MLflow (`Trace.to_json()` and
`search_traces().to_json(orient="records")`) and OTLP (JSON lines of a collector).
"""

import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning_http.otlp import JSON, MalformedTraces, parse, spans_of

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded
from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.conversation import chat_text
from lightning_core.emitter import find_reward_spans
from lightning_core.errors import ConfigError
from lightning_core.types import Span, TraceStatus

Record = dict[str, Any]

_OUT_OF_REACH = re.compile(
    r"RateLimit|APIConnection|APITimeout|InternalServerError|ServiceUnavailable|Overloaded|Connect(ion)?(Refused|Reset)?"
    r"(Error|Timeout)|ReadTimeout|Docker|Sandbox|\b(429|500|502|503|504|529)\b"
)
"""In what an exception says: what the agent needed could not be reached, which says nothing of the agent."""

_RATINGS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "pass": 1.0, "fail": 0.0}


@dataclass(slots=True)
class Trace:
    """One execution of an agent."""

    key: str
    place: str
    spans: list[Span] = field(default_factory=list)
    input: Any = None
    """What the agent was asked, where the trace says it by itself; None to take it from the root span."""
    output: Any = None
    rewards: dict[str, float] = field(default_factory=dict)
    expected: Any = None
    """The right answer, where people gave one."""
    error: str | None = None
    """Of a trace that failed: what happened."""

    def is_fault(self) -> bool:
        """Whether what failed was the infrastructure."""
        return self.error is not None and _OUT_OF_REACH.search(self.error) is not None


@dataclass(slots=True)
class Skipped:
    """What could not be read: how many, and the first of them."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add(self, reason: str, place: str, what: object = "") -> None:
        """Count one."""
        self.reasons[reason] += 1
        self.first = self.first or (f"{place}: {what}" if what else place)

    def __str__(self) -> str:
        counted = "; ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())
        return f"{counted}, such as {self.first}" if counted else "it is empty"


def records_of(path: Path, skipped: Skipped, *, limit: int) -> Iterator[tuple[str, Record]]:
    """Yield the records of a file: of JSON, or of a line of JSON each; with the place of each.

    Raises:
        ConfigError: When the file (unpacked, where it ends in `.gz`) is larger than `limit` bytes, does not
            unpack, or is a folder.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the files of an export in it")
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read(limit + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise ConfigError(f"{path} cannot be unpacked: {exc}; export it again") from exc
    if len(data) > limit:
        raise ConfigError(f"{path} has more than {limit:,} bytes; split it")
    text = data.decode("utf-8-sig", errors="replace")
    try:
        entries = [(str(path), json.loads(text))]
    except (ValueError, RecursionError):
        entries = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    entries.append((f"line {number} of {path}", json.loads(line)))
                except (ValueError, RecursionError) as exc:
                    skipped.add("lines that are not JSON", f"line {number} of {path}", exc)
    for place, value in entries:
        if isinstance(value, dict) and isinstance(value.get("data"), list):  # a page of an API
            value = value["data"]
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield place, each
            else:
                skipped.add("values that are not objects", place)


def source_of(record: Record) -> str | None:
    """Return the name of the source that a record looks like; None where it is like none."""
    names = record.keys()
    if "resourceSpans" in names:
        return "otlp"
    if {"info", "data"} <= names or {"trace", "assessments"} <= names:
        return "mlflow"
    if str(record.get("schema_version")).startswith("ATIF"):
        return "atif"
    if "context.span_id" in names or "context" in names or "annotator_kind" in names:
        return "phoenix"
    if "spans" in names:
        return "phoenix"
    is_row = ("traceId" in names or "trace_id" in names) and ("type" in names or "value" in names)
    return "langfuse" if is_row or "observations" in names or {"id", "timestamp", "input"} <= names else None


def traces_of(source: str, paths: Iterable[Path], skipped: Skipped, *, limit: int) -> list[Trace]:
    """Read the traces of files.

    Args:
        source: Whose export they are: one of `READERS`.
        paths: The files: traces, or spans, and their scores, in any order.
        skipped: Takes what could not be read.
        limit: The most bytes of a file.

    Raises:
        ConfigError: When nothing in them is of the source; says what it looks like.
    """
    traces: dict[str, Trace] = {}
    scores: list[tuple[str, Record]] = []
    others: Counter[str | None] = Counter()
    for path in paths:
        for place, record in records_of(path, skipped, limit=limit):
            if (looks := source_of(record)) != source:
                others[looks] += 1
                skipped.add(f"records that are not of {source}", place)
                continue
            count = len(traces)
            try:
                READERS[source](record, place, traces, scores)
            except (KeyError, TypeError, ValueError, AttributeError, MalformedTraces) as exc:
                while len(traces) > count:  # half of one is none: its task is missing
                    traces.popitem()
                skipped.add("records that cannot be read", place, f"{type(exc).__name__}: {exc}")
    if not traces:
        named = [name for name, _ in others.most_common() if name is not None]
        hint = f"they look like an export of {named[0]}; take --from {named[0]}" if named else "name another file"
        raise ConfigError(f"there is no trace of {source} in {', '.join(map(str, paths))} ({skipped}); {hint}")
    by_span = {span.span_id: trace for trace in traces.values() for span in trace.spans}
    for place, score in scores:
        trace = traces.get(str(score.get("trace_id"))) or by_span.get(str(score.get("span_id")))
        value = _number(score["value"])
        if trace is None or value is None:
            skipped.add("scores without a number" if trace else "scores of other traces", place, score.get("name"))
        else:
            trace.rewards[str(score["name"])] = value
    for trace in traces.values():
        _complete(trace)
    return list(traces.values())


def _complete(trace: Trace) -> None:
    """Take from the spans what the trace does not say by itself."""
    known = {span.span_id for span in trace.spans}
    roots = [span for span in trace.spans if span.parent_id not in known]
    root = min(roots, key=lambda span: span.start_time or 0.0, default=None)
    calls = agent_calls(trace.spans)
    if root is not None:
        given = root.attributes
        trace.input = _first(trace.input, decoded(given.get("input.value")))
        trace.output = _first(trace.output, decoded(given.get("output.value")))
        if root.status.status_code == "ERROR" and trace.error is None:
            raised = [event.attributes for event in root.events if event.name == "exception"]
            named = ": ".join(str(each.get(f"exception.{key}")) for each in raised[-1:] for key in ("type", "message"))
            trace.error = named or root.status.description or "the root span has the status ERROR"
    if trace.input is None and calls:
        asked = [message for message in calls[0].messages if message.get("role") == "user"]
        trace.input = asked[-1].get("content") if asked else list(calls[0].messages)
    if trace.output is None and calls and calls[-1].answers:
        trace.output = calls[-1].answers[0].get("content")
    if not find_reward_spans(trace.spans):
        for event in (event for span in trace.spans for event in span.events if event.name == genai.EVALUATION_EVENT):
            value = _number(event.attributes.get(genai.EVALUATION_VALUE))
            if value is not None:
                trace.rewards.setdefault(str(event.attributes.get(genai.EVALUATION_NAME)), value)


def _otlp(record: Record, place: str, traces: dict[str, Trace], scores: list[Any]) -> None:
    received = spans_of(parse(json.dumps(record).encode(), JSON), rollout_id="imported", attempt_id="imported")
    for span in received.spans:
        traces.setdefault(span.trace_id, Trace(span.trace_id, place)).spans.append(span)


def _langfuse(record: Record, place: str, traces: dict[str, Trace], scores: list[tuple[str, Record]]) -> None:
    row = {
        re.sub(r"(?<=[a-z])[A-Z]", lambda match: f"_{match[0].lower()}", name): each for name, each in record.items()
    }
    trace_id = row.get("trace_id") if "trace_id" in row else row["id"]
    if "value" in row and "type" not in row:
        value = row["value"] if row.get("value") is not None else row.get("string_value")
        scores.append((place, {"trace_id": trace_id, "name": row["name"], "value": value}))
        return
    trace = traces.setdefault(str(trace_id), Trace(str(trace_id), place))
    # An export of a table has a column of numbers for each score.
    columns = {name: each for name, each in record.items() if isinstance(each, list) and each}
    tabled = [{"name": name, "value": each[-1]} for name, each in columns.items() if all(map(_is_number, each))]
    for each in [*(row.get("scores") or ()), *tabled]:
        if isinstance(each, dict):
            _langfuse({**each, "trace_id": trace_id}, place, traces, scores)
    for each in row.get("observations") or ():
        if isinstance(each, dict):
            _langfuse({**each, "trace_id": trace_id}, place, traces, scores)
    if "type" not in row:  # the trace itself
        trace.input, trace.output = (_first(decoded(row.get(name))) for name in ("input", "output"))
        return
    usage = row.get("usage_details") or row.get("usage") or {}
    trace.spans.append(
        _span(
            str(trace_id),
            str(row["id"]),
            row.get("parent_observation_id"),
            row.get("name") or row["type"],
            kind=row["type"],
            given=(row.get("input"), row.get("output")),
            model=row.get("provided_model_name") or row.get("model"),
            tokens=(usage.get("input"), usage.get("output")),
            times=(_seconds(row.get("start_time")), _seconds(row.get("end_time"))),
            error=(row.get("status_message") or "error") if row.get("level") == "ERROR" else None,
        )
    )


def _mlflow(record: Record, place: str, traces: dict[str, Trace], scores: list[tuple[str, Record]]) -> None:
    if "info" not in record:  # a row of `search_traces`
        record = json.loads(record["trace"])
    info = record["info"]
    key = str(info.get("trace_id") or info["request_id"])
    trace = traces.setdefault(key, Trace(key, place))
    for each in record["data"]["spans"]:
        attributes = {name: _json(value) for name, value in (each.get("attributes") or {}).items()}
        context, status = each.get("context") or each, each.get("status") or {}
        code = status.get("code") or each.get("status_code") or ""
        usage = attributes.get("mlflow.chat.tokenUsage") or {}
        trace.spans.append(
            _span(
                key,
                context["span_id"],
                each.get("parent_span_id") or each.get("parent_id"),
                each.get("name", ""),
                kind=str(attributes.get("mlflow.spanType", "")),
                given=(attributes.get("mlflow.spanInputs"), attributes.get("mlflow.spanOutputs")),
                model=attributes.get("mlflow.llm.model"),
                tokens=(usage.get("input_tokens"), usage.get("output_tokens")),
                times=tuple(
                    _seconds(each.get(f"{name}_unix_nano", each.get(name))) for name in ("start_time", "end_time")
                ),
                error=(status.get("message") or each.get("status_message") or "error") if "ERROR" in code else None,
            )
        )
    for each in info.get("assessments") or ():
        name = each.get("assessment_name") or each.get("name")
        if isinstance(each.get("expectation"), dict):
            trace.expected = each["expectation"].get("value")
        elif isinstance(each.get("feedback"), dict):
            scores.append((place, {"trace_id": key, "name": name, "value": each["feedback"].get("value")}))


def _phoenix(record: Record, place: str, traces: dict[str, Trace], scores: list[tuple[str, Record]]) -> None:
    for each in record.get("spans") or ():
        _phoenix(each, place, traces, scores)
    for each in record.get("annotations") or ():
        annotation = {"annotator_kind": None, "span_id": record.get("context", record).get("span_id"), **each}
        _phoenix(annotation, place, traces, scores)
    if "spans" in record:
        return
    if "annotator_kind" in record:
        result = record.get("result") or record
        value = _first(result.get("score"), result.get("label"))
        scores.append((place, {"span_id": record["span_id"], "name": record["name"], "value": value}))
        return
    if "context" not in record and "context.trace_id" not in record:
        raise ValueError("a span without attributes; export /v1/projects/PROJECT/spans, which has them")
    context = record.get("context") or {name: record[f"context.{name}"] for name in ("trace_id", "span_id")}
    attributes = dict(_flat(record.get("attributes") or {}))
    attributes |= dict(
        pair for name, value in record.items() if name.startswith("attributes.") for pair in _flat(value, name[11:])
    )
    attributes.setdefault(genai.OPENINFERENCE_KIND, record.get("span_kind"))
    is_error = record.get("status_code") == "ERROR"
    span = Span.from_attributes(
        attributes={name: value for name, value in attributes.items() if value is not None},
        name=record.get("name") or "span",
        trace_id=context["trace_id"],
        span_id=context["span_id"],
        parent_id=record.get("parent_id") or None,
        start_time=_seconds(record.get("start_time")),
        end_time=_seconds(record.get("end_time")),
        status=TraceStatus(status_code="ERROR" if is_error else "OK", description=record.get("status_message") or None),
    )
    traces.setdefault(span.trace_id, Trace(span.trace_id, place)).spans.append(span)


READERS: Mapping[str, Callable[[Record, str, dict[str, Trace], list[tuple[str, Record]]], None]] = {
    "otlp": _otlp,
    "langfuse": _langfuse,
    "phoenix": _phoenix,
    "mlflow": _mlflow,
}
"""Reads one record: by the name of the source."""

_CALLS = ("GENERATION", "LLM", "CHAT_MODEL")


def _span(
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    name: str,
    *,
    kind: str,
    given: tuple[Any, Any],
    model: Any,
    tokens: tuple[Any, Any],
    times: tuple[float | None, ...],
    error: str | None,
) -> Span:
    """Make a span with current names: a call of a model, a tool, or something else with an input and an output."""
    asked, answered = map(decoded, given)
    attributes: dict[str, Any] = {"input.value": _text(asked), "output.value": _text(answered)}
    if kind.upper() in _CALLS:
        attributes |= {
            genai.OPERATION_NAME: "chat",
            genai.REQUEST_MODEL: model
            or next((each["model"] for each in (answered, asked) if _has(each, "model")), None),
            genai.INPUT_MESSAGES: chat_text(_messages(asked, "user")),
            genai.OUTPUT_MESSAGES: None if answered is None else chat_text(_messages(answered, "assistant")[:1]),
            genai.INPUT_TOKENS: tokens[0],
            genai.OUTPUT_TOKENS: tokens[1],
        }
    elif kind.upper() == "TOOL":
        attributes |= {genai.OPERATION_NAME: "execute_tool", genai.TOOL_NAME: name}
    return Span.from_attributes(
        attributes={name: value for name, value in attributes.items() if value is not None},
        name=name or kind or "span",
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id or None,
        start_time=times[0],
        end_time=times[1],
        status=TraceStatus(status_code="OK" if error is None else "ERROR", description=error),
    )


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Return chat messages of what a product keeps of a call: messages, a request or a response, or a text."""
    if isinstance(value, Mapping):
        if isinstance(value.get("choices"), Sequence):
            return [dict(choice["message"]) for choice in value["choices"]]
        if isinstance(value.get("messages"), Sequence):
            return _messages(value["messages"], role)
        if "content" in value or "tool_calls" in value:
            return [{"role": role, **value}]
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and "role" in each for each in value):
        return [dict(each) for each in value]
    return [{"role": role, "content": value if isinstance(value, str) else _text(value)}]


def _has(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and name in value


def _json(value: Any) -> Any:
    """Read an attribute of MLflow, which is JSON, also where it is a text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(each, Mapping) for each in value)):
        for name, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(each, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None and value != ""), None)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = _RATINGS.get(value.lower(), value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: Any) -> float | None:
    """Read a time: ISO 8601, or a number of seconds, milliseconds or nanoseconds."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and not value.isdecimal():
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    number = float(value)
    return number / (1e9 if number > 1e17 else 1e3 if number > 1e11 else 1)
