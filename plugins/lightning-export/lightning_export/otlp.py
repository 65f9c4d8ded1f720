"""`agl export RUN --to otlp`: the traces of a run, for a collector."""

import asyncio
import hashlib
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from lightning_core.adapter import genai
from lightning_core.adapter.calls import agent_calls
from lightning_core.adapter.conversation import chat_text
from lightning_core.emitter import get_rewards_from_span
from lightning_core.errors import LightningError
from lightning_core.runs.folder import RunFolder
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.tracer.export import readable
from lightning_core.types import Event, RolloutMode, Span, SpanContext, TraceStatus
from lightning_core.types.span import StatusCode
from lightning_export.attempts import Ended, Reading, Wanted, agent_of, read_ended

BATCH_SIZE = 512
"""How many spans are sent at once."""


_STATUSES: Mapping[str, StatusCode] = {"succeeded": "OK", "failed": "ERROR"}


def otlp(
    run: RunFolder,
    target: Path,
    *,
    endpoint: str | None = None,
    best: int | None = None,
    min_reward: float | None = None,
    mode: RolloutMode | None = None,
    redact: bool = False,
) -> str:
    """Send each rollout's last attempt as one trace, with the names that its spans were recorded under.

    The root is a span `invoke_agent`, with the task, the last answer and the rewards. Ids of traces are made of the
    attempt's, so that sending a run again does not make other traces.

    Args:
        run: The run.
        target: Nothing is written there.
        endpoint: The URL that takes traces, as `http://127.0.0.1:6006/v1/traces`; None for that of the environment.
        best: Of each input only so many rollouts, with the highest rewards.
        min_reward: Only rollouts with at least this reward.
        mode: Only rollouts of this mode.
        redact: Replace secrets, and leave out token ids.

    Raises:
        LightningError: When the collector does not take them.
    """
    del target
    wanted = Wanted(
        statuses=("succeeded", "failed", "cancelled"), mode=mode, best=best, min_reward=min_reward, redact=redact
    )
    agent = agent_of(run)
    exporter = OTLPSpanExporter(endpoint=endpoint)
    reading = Reading()
    sent = 0

    def made(ended: Ended) -> list[ReadableSpan]:
        return trace_of(ended, agent)

    async def send() -> None:
        nonlocal sent
        batch: list[ReadableSpan] = []
        async for ended in read_ended(run, wanted, made):
            batch += reading.make(made, ended) or []
            if len(batch) >= BATCH_SIZE:
                sent += await asyncio.to_thread(_send, exporter, batch)
                batch = []
        sent += await asyncio.to_thread(_send, exporter, batch) if batch else 0

    try:
        asyncio.run(send())
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return f"sent {sent:,} spans of {reading}"


def trace_of(ended: Ended, agent: str) -> list[ReadableSpan]:
    """Make one trace of an attempt: a root, and below it all spans that had no parent among them."""
    attempt = ended.rollout.attempt
    trace_id = hashlib.sha256(attempt.attempt_id.encode()).hexdigest()[:32]
    root_id = trace_id[16:]
    known = {span.span_id for span in ended.spans}
    ids = {
        LightningResourceAttributes.ROLLOUT_ID.value: ended.rollout.rollout_id,
        LightningResourceAttributes.ATTEMPT_ID.value: attempt.attempt_id,
    }
    times = [time for span in ended.spans for time in (span.start_time, span.end_time) if time is not None]
    root = Span.from_attributes(
        attributes=_root_attributes(ended, agent),
        name=f"invoke_agent {agent}",
        trace_id=trace_id,
        span_id=root_id,
        start_time=min([attempt.start_time, *times]),
        end_time=max([attempt.end_time or attempt.start_time, *times]),
        status=TraceStatus(status_code=_STATUSES.get(ended.rollout.status, "UNSET")),
    )
    root.events = [event for span in ended.spans for event in _evaluations(span)]
    spans = [readable(root, resource=Resource({"service.name": agent, **ids}))]
    for span in ended.spans:
        links = [
            link.model_copy(update={"context": link.context.model_copy(update=_ids(link.context))})
            for link in span.links
        ]
        placed = span.model_copy(
            update={
                "trace_id": trace_id,
                "span_id": _id(span.span_id, 16),
                "links": links,
                "parent_id": _id(span.parent_id, 16) if span.parent_id in known else root_id,
            }
        )
        spans.append(readable(placed, resource=Resource({**span.resource.attributes, **ids})))
    return spans


def _evaluations(span: Span) -> Iterator[Event]:
    try:
        rewards = get_rewards_from_span(span)
    except ValueError:  # a broken reward is not one
        return
    for reward in rewards:
        attributes = {genai.EVALUATION_NAME: reward.name, genai.EVALUATION_VALUE: reward.value}
        yield Event(name=genai.EVALUATION_EVENT, attributes=attributes, timestamp=span.end_time)


def _id(given: str | None, length: int) -> str:
    """Return an id as OpenTelemetry has it; of one that is something else, a digest."""
    text = str(given)
    is_hex = len(text) == length and all(character in string.hexdigits for character in text)
    return text if is_hex else hashlib.sha256(text.encode()).hexdigest()[:length]


def _ids(context: SpanContext) -> dict[str, str]:
    return {"trace_id": _id(context.trace_id, 32), "span_id": _id(context.span_id, 16)}


def _root_attributes(ended: Ended, agent: str) -> dict[str, Any]:
    task = ended.rollout.input
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False, default=str)
    answers = [call.answers[0] for call in agent_calls(ended.spans) if call.answers][-1:]
    return {
        genai.OPERATION_NAME: "invoke_agent",
        genai.AGENT_NAME: agent,
        genai.INPUT_MESSAGES: chat_text([{"role": "user", "content": text}]),
        **({genai.OUTPUT_MESSAGES: chat_text(answers)} if answers else {}),
    }


def _send(exporter: OTLPSpanExporter, spans: Sequence[ReadableSpan]) -> int:
    if exporter.export(spans) is not SpanExportResult.SUCCESS:
        raise LightningError(
            "the collector did not take the spans (the log says why); name its address with --endpoint, as in "
            "http://127.0.0.1:6006/v1/traces, or with OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
        )
    return len(spans)
