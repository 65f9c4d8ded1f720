"""Between a rollout as the protocol carries it, and the spans that a store keeps."""

import functools
import warnings
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lightning_core.adapter import TracerTraceToTriplet, genai
from lightning_core.emitter import emit_reward
from lightning_core.errors import InvalidResult
from lightning_core.rewards import sound_final_reward
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, Rollout, Span, SpanCoreFields, Triplet
from lightning_legacy.names import RolloutLegacy, Task

PAYLOAD = "legacy"
"""Under this name an attempt's metadata have what an agent sent besides spans and the reward."""


@functools.cache
def warn_once() -> None:
    """Warn that the protocol is deprecated, once in a process."""
    message = (
        "the protocol of agentlightning 0.1 and 0.2 is deprecated; use Trainer.fit, whose runners talk to the store"
    )
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def task_of(rollout: Rollout, resources_id: str | None = None) -> Task:
    """Return a rollout as agents are given it."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    return Task(
        rollout_id=rollout.rollout_id,
        input=rollout.input,
        mode=rollout.mode,
        resources_id=resources_id or rollout.resources_id,
        create_time=rollout.start_time,
        last_claim_time=None if attempt is None else attempt.start_time,
        num_claims=None if attempt is None else attempt.sequence_id,
        metadata=rollout.metadata or {},
    )


def spans_of(payload: RolloutLegacy, rollout_id: str, attempt_id: str) -> list[Span]:
    """Return what an agent sent as spans of an attempt: its trace, else its triplets; and its reward.

    Raises:
        InvalidResult: When it sent nothing, as the runner of 0.2 does for an agent that raised; or when its trace
            cannot be read.
        ValueError: When its reward is not finite.
    """
    if payload.final_reward is None and not payload.triplets and not payload.trace:
        raise InvalidResult("the agent raised, or sent neither a reward nor a trace; its own log says which")
    cores: list[SpanCoreFields] = []
    spans: list[Span] = []
    try:
        spans += [_read_span(item, rollout_id, attempt_id) for item in payload.trace or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidResult(f"the trace cannot be read: {type(exc).__name__}: {exc}") from None
    if not spans:
        for triplet in payload.triplets or ():
            cores += _as_spans(triplet)
    if payload.final_reward is not None and payload.final_reward != sound_final_reward([*spans, *cores]):
        cores.append(emit_reward(payload.final_reward, propagate=False))
    return [*spans, *(Span.from_core_fields(core, rollout_id=rollout_id, attempt_id=attempt_id) for core in cores)]


async def read_rollout(store: LightningStore, rollout: Rollout) -> RolloutLegacy:
    """Return a rollout that has ended as an algorithm of 0.2 gets it, whichever runner executed it.

    The trace is a list of spans as 0.3 has them.
    """
    spans = await store.query_spans(rollout.rollout_id, "latest")
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    kept = ((attempt and attempt.metadata) or {}).get(PAYLOAD, {})
    return RolloutLegacy.model_validate(
        {
            "rollout_id": rollout.rollout_id,
            "task": task_of(rollout),
            "final_reward": sound_final_reward(spans),
            "triplets": TracerTraceToTriplet()(spans) or None,
            "trace": [span.model_dump(mode="json") for span in spans],
            **kept,
        }
    )


def _read_span(item: dict[str, Any], rollout_id: str, attempt_id: str) -> Span:
    """Read a span of 0.3, or the JSON of OpenTelemetry's SDK, which 0.1 and 0.2 send."""
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 0}
    if "span_id" in item:
        return Span.model_validate({**item, **ids})
    return Span.model_validate(
        {
            **ids,
            **_read_ids(item["context"]),
            "parent_id": item["parent_id"] and item["parent_id"].removeprefix("0x"),
            "name": item["name"],
            "status": item["status"],
            "attributes": item["attributes"] or {},
            "events": [
                {**event, "attributes": event.get("attributes") or {}, "timestamp": _read_time(event["timestamp"])}
                for event in item.get("events") or ()
            ],
            "start_time": _read_time(item["start_time"]),
            "end_time": _read_time(item["end_time"]),
            "resource": {"attributes": (item.get("resource") or {}).get("attributes") or {}, "schema_url": ""},
        }
    )


def _read_ids(context: Mapping[str, str]) -> dict[str, str]:
    return {name: context[name].removeprefix("0x") for name in ("trace_id", "span_id")}


def _read_time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _as_spans(triplet: Triplet) -> list[SpanCoreFields]:
    """Return a model call with the tokens of a triplet, where it has some, and its reward."""
    attributes = {
        name: tokens["token_ids"]
        for name, tokens in ((genai.PROMPT_TOKEN_IDS, triplet.prompt), (genai.RESPONSE_TOKEN_IDS, triplet.response))
        if isinstance(tokens, Mapping) and "token_ids" in tokens
    }
    spans = []
    if attributes:
        call = {genai.OPERATION_NAME: "chat", **attributes}
        spans.append(SpanCoreFields(name=genai.CHAT_CALL_NAME, attributes=call))
    if triplet.reward is not None:
        spans.append(emit_reward(triplet.reward, propagate=False))
    return spans
