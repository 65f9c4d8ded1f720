"""The trace of a rollout, as JSON: what was said in its model calls, its training rows, its rewards, and its spans."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.adapter import TraceToTrajectories, read_model_calls
from lightning_core.adapter.calls import ModelCall, has_failed
from lightning_core.adapter.dialects import DIALECTS
from lightning_core.emitter import get_message_value, get_rewards_from_span
from lightning_core.rewards import NamedReward, is_late
from lightning_core.semconv import AGL_EXCEPTION, LightningSpanAttributes
from lightning_core.store import LightningStore
from lightning_core.types import Span
from lightning_viewer.trace_tree import content_text, repeated

MAX_SPANS = 2_000
"""How many spans are read at once. The page asks for the following ones when somebody wants to see them."""

MAX_VALUE = 4_000
"""How many characters of an attribute or a message are kept."""

MAX_TOKENS = 1_000
"""How many tokens of an answer are kept."""

MAX_MASKED = 200
"""How many tokens before an answer are kept: the last ones."""

_CONVERSATION = tuple(name for each in DIALECTS for name in (each.messages, each.answers, *each.tools))
"""Attributes of a model call that its messages tell already begin with one of these."""


async def read_trace(store: LightningStore, rollout_id: str, *, offset: int = 0) -> dict[str, Any]:
    """Read the trace of the newest attempt of a rollout, at most `MAX_SPANS` of its spans.

    Args:
        store: Where it is.
        rollout_id: Of which rollout.
        offset: How many spans to leave out, from the first on.

    Returns:
        `spans`, in their order; what is made of these: `calls` (the conversation, call by call) and `rows` (of each
        training row, how many tokens are `trained` on and how many are `masked`); `total`, how many spans there are;
        and `next`, the offset of the following ones, None where there are none.
    """
    page = await store.query_spans(rollout_id, "latest", limit=MAX_SPANS, offset=offset)
    end = offset + len(page.items)
    trace = await asyncio.to_thread(_as_trace, list(page.items))  # else all other requests would wait for it
    return {**trace, "total": page.total, "next": end if end < page.total else None}


def _as_trace(spans: Sequence[Span]) -> dict[str, Any]:
    training = Training(spans)
    calls = read_model_calls(spans)
    of_calls = {span.span_id for call in calls for span in call.spans}
    conversation: Sequence[Mapping[str, Any]] = ()
    call_records = []
    for call in calls:
        known = repeated(conversation, call.messages)
        used = call.usage
        call_records.append(
            {
                "span": call.span_id,
                "model": call.model,
                "purpose": call.purpose,
                "start": call.start_time,
                "end": call.end_time,
                "error": call.error,
                "finish": call.finish_reason,
                "input_tokens": used.input_tokens,
                "output_tokens": used.output_tokens,
                "repeated": known,
                "messages": [_message(each) for each in call.messages[known:]],
                "answers": [_message(each) for each in call.answers],
                "tokens": _tokens(call, training),
            }
        )
        conversation = (*call.messages, *call.answers[:1])
    span_records = [_span(each, each.span_id in of_calls) for each in spans]
    return {"calls": call_records, "rows": training.rows, "spans": span_records}


class Training:
    """The training rows of an attempt, as the adapter `trajectory` makes them, and where its calls are in them.

    Args:
        spans: Of the attempt.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.rows: list[dict[str, int]] = []
        """Of each row, how many tokens are `trained` on and how many are `masked`."""
        self._by_span: dict[str, dict[str, Any]] = {}
        self._otherwise = "is not learned from"
        try:
            trajectories = TraceToTrajectories().adapt(spans)
        except ValueError as exc:  # a broken reward: nothing is learned from the attempt
            self._otherwise = str(exc)
            return
        for refused in trajectories.refused:
            self._put(refused.call, refused.choice, {"why": refused.detail})
        for number, row in enumerate(trajectories.rows, start=1):
            trained = sum(row.mask)
            masked = len(row.prompt_ids) + len(row.response_ids) - trained
            self.rows.append({"trained": trained, "masked": masked})
            before, stop = row.prompt_ids, 0
            for part in row.calls:
                between = before or row.response_ids[stop : part.start]
                about = {"row": number, "goes_on": not before, "masked": len(between), "before": between[-MAX_MASKED:]}
                self._put(part.call, part.choice, about)
                before, stop = [], part.stop

    def of(self, call: ModelCall) -> dict[str, Any]:
        """Return `row`, its number from 1, None where the call's first answer is in none, and `why`.

        In a row, `goes_on` says whether an earlier call began it, `masked` how many tokens came between that call's
        answer and this one, or before the row's first answer, and `before` has the last of these.
        """
        nowhere: dict[str, Any] = {"row": None, "goes_on": False, "masked": 0, "before": [], "why": None}
        return nowhere | self._by_span.get(call.span_id, {"why": self._otherwise})

    def _put(self, call: ModelCall, choice: int, about: dict[str, Any]) -> None:
        if choice == 0:
            self._by_span.update(dict.fromkeys((span.span_id for span in call.spans), about))


def _tokens(call: ModelCall, training: Training) -> dict[str, Any] | None:
    """Return the engine's tokens of a call, None where it gave none: what the prompt has, and the answer's own."""
    if call.prompt_token_ids is None or call.response_token_ids is None:
        return None
    logprobs = call.choices[0].logprobs
    return {
        "prompt": len(call.prompt_token_ids),
        "response": len(call.response_token_ids),
        "ids": list(call.response_token_ids[:MAX_TOKENS]),
        "logprobs": None if logprobs is None else [round(each, 3) for each in logprobs[:MAX_TOKENS]],
        **training.of(call),
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [each.get("function") or {} for each in message.get("tool_calls") or ()]
    return {
        "role": str(message.get("role", "")),
        "text": _shortened(content_text(message.get("content"), between="\n")),
        "reasoning": _shortened(str(message.get("reasoning_content") or message.get("reasoning") or "")),
        "tools": [
            {"name": str(each.get("name", "")), "arguments": _shortened(str(each.get("arguments") or ""))}
            for each in calls
        ],
    }


def _span(span: Span, is_call: bool) -> dict[str, Any]:
    rewards, broken = _rewards_of(span)
    has_message = isinstance(span.attributes.get(LightningSpanAttributes.MESSAGE_BODY.value), str)
    kind = "call" if is_call else "reward" if rewards else "message" if has_message else "span"
    raised = [each.attributes for each in span.events if each.name == "exception"]
    if span.name == AGL_EXCEPTION:
        raised.append(span.attributes)
    if broken is not None:
        raised.append({"exception.type": "broken reward", "exception.message": broken})
    return {
        "id": span.span_id,
        "parent": span.parent_id,
        "name": span.name,
        "kind": kind,
        "start": span.start_time,
        "end": span.end_time,
        "failed": has_failed(span) or bool(raised),
        "text": _shortened(str(get_message_value(span))) if kind == "message" else None,
        "rewards": [{"name": each.name, "value": each.value} for each in rewards],
        "late": is_late(span.attributes),
        "raised": [
            {
                "type": str(each.get("exception.type", "Exception")),
                "message": _shortened(str(each.get("exception.message", ""))),
                "trace": _shortened(str(each.get("exception.stacktrace", ""))),
            }
            for each in raised
        ],
        "attributes": {
            name: value
            if _is_number(value)
            else _shortened(value if isinstance(value, str) else json.dumps(value, default=str))
            for name, value in span.attributes.items()
            if not (is_call and name.startswith(_CONVERSATION)) and not name.startswith("exception.")
        },
    }


def _is_number(value: Any) -> bool:
    """Tell whether a page can have a value as a number: JavaScript's are exact up to this one."""
    return type(value) in (int, float) and abs(value) < 2**53


def _rewards_of(span: Span) -> tuple[list[NamedReward], str | None]:
    """Return the rewards of a span, and what is wrong with them: anybody with an attempt's key may have sent it."""
    try:
        return get_rewards_from_span(span), None
    except ValueError as exc:
        return [], str(exc)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text) - MAX_VALUE:,} more characters)"
