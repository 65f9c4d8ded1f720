"""From a call's record to its span, by OpenTelemetry's GenAI conventions.

https://github.com/open-telemetry/semantic-conventions-genai
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_core.adapter import genai
from lightning_core.secrets import hide_in_text
from lightning_core.types import OtelResource, Span, SpanContext, TraceStatus
from lightning_core.types.frozen import EMPTY, construct
from lightning_core.types.text import hide_attempt_keys
from lightning_proxy import parts
from lightning_proxy.answer import Answer, AnswerChoice
from lightning_proxy.call import CallRecord
from lightning_proxy.jsons import text, whole
from lightning_proxy.model_list import Replica

_HIDDEN = b"***"
_VARIABLE = "os.environ/"
_SHORTEST_KEY = 8
"""What is shorter stands for none, such as `EMPTY`, and may be a part of any text."""


def without_keys_of(replica: Replica, said: bytes) -> bytes:
    """Return what a backend said without the keys that its entry of the model list has for it."""
    for key in _keys(replica.spec):
        if len(key) >= _SHORTEST_KEY:
            said = said.replace(key.encode(), _HIDDEN)
    return said


def _keys(entry: object) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        return
    backend = entry.get("backend")
    options: dict[str, Any] = {
        **(backend if isinstance(backend, Mapping) else {}),
        **entry.get("litellm_params", {}),
    }
    key, headers = options.get("api_key"), options.get("headers")
    if key is None and options.get("api_base") is None:
        key = f"{_VARIABLE}OPENAI_API_KEY"
    for given in (key, *(headers.values() if isinstance(headers, Mapping) else ())):
        if isinstance(given, str):
            yield os.environ.get(given.removeprefix(_VARIABLE), "") if given.startswith(_VARIABLE) else given


logger = logging.getLogger(__name__)

WEIGHT_VERSION = "agentlightning.weight_version"
"""The version of the weights when the call was sent."""
LAST_WEIGHT_VERSION = "agentlightning.weight_version.end"
"""The same when it ended, where that is another one."""
HAS_TOKEN_IDS = "agentlightning.has_token_ids"
"""False for a call of which the engine gave no token ids."""
TRIES = "agentlightning.tries"
"""How often the call was sent, where that was more than once."""
FIRST_CHUNK_SECONDS = "gen_ai.response.time_to_first_chunk"
COST = "gen_ai.usage.cost"

MAX_ERROR_CHARACTERS = 2_000
"""What is recorded of an error."""

_QUOTING = frozenset({"backend_broke", "backend_error", "backend_garbage"})
"""Errors that say what the backend said, as do those that are its HTTP status."""
_RESOURCE = OtelResource(attributes={"service.name": genai.PROXY_SERVICE})
_OK = TraceStatus(status_code="OK")
_SPAN_FIELDS = set(Span.model_fields)
_CONTEXT_FIELDS = set(SpanContext.model_fields)
_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}

Redact = Callable[[str, Any], Any]
"""Is given `input`, `output`, `instructions` or `tools` and what is to be recorded; returns what is recorded."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What is recorded of what was said."""

    content: bool = True
    """Whether messages and tools are."""
    tokens: bool = True
    """Whether token ids are; a text can be made of them."""
    redact: Redact | None = None
    """Changes messages and tools before they are recorded. Token ids are not changed: see `tokens`."""


def span_of(record: CallRecord, capture: Capture) -> Span:
    """Make the span of a call that has ended. Its number is to be set by the caller."""
    answer, request = record.answer, record.request
    asked = request.get("model") or record.model_name
    model = None if asked is None else whole(str(asked))
    attributes: dict[str, Any] = {
        genai.OPERATION_NAME: record.dialect.operation,
        "gen_ai.provider.name": record.dialect.provider,
        **({} if model is None else {genai.REQUEST_MODEL: model}),
        **_parameters(request),
        **_numbers(record),
    }
    if record.purpose is not None:
        attributes[genai.PURPOSE] = record.purpose
    if answer.model is not None:
        attributes[genai.RESPONSE_MODEL] = whole(answer.model)
    if answer.id is not None:
        attributes[genai.RESPONSE_ID] = whole(answer.id)
    if any(choice.finish_reason is not None for choice in answer.choices):
        attributes[genai.FINISH_REASONS] = [whole(choice.finish_reason or "") for choice in answer.choices]
    if capture.tokens:
        attributes.update(_tokens(answer))
    attributes[HAS_TOKEN_IDS] = answer.prompt_token_ids is not None and any(
        choice.token_ids is not None for choice in answer.choices
    )
    if capture.content:
        attributes.update(_content(record, capture.redact))
    status = _OK
    if record.error_kind is not None:
        attributes[genai.ERROR_TYPE] = record.error_kind
        status = TraceStatus(status_code="ERROR", description=_error(record, record.error_kind, capture))
    ids = secrets.token_hex(24)
    span_id = ids[32:]
    trace_id, parent_id = record.parent if record.parent is not None else (ids[:32], None)
    fields = {
        "rollout_id": record.owner.rollout_id,
        "attempt_id": record.owner.attempt_id,
        "sequence_id": 0,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent_id,
        "name": record.dialect.operation if model is None else f"{record.dialect.operation} {model}",
        "status": status,
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": record.began,
        "end_time": record.began + record.duration,
        "context": _context(trace_id, span_id, is_remote=False),
        "parent": None if parent_id is None else _context(trace_id, parent_id, is_remote=True),
        "resource": _RESOURCE,
    }
    return construct(Span, fields, _SPAN_FIELDS.copy(), {})  # every value is what its field takes


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    fields = {"trace_id": trace_id, "span_id": span_id, "is_remote": is_remote, "trace_state": EMPTY}
    return construct(SpanContext, fields, _CONTEXT_FIELDS)


def bare_span_of(record: CallRecord, error: Exception) -> Span:
    """Make the span of a call of which no more can be said: that it was there, and why nothing is known of it."""
    bare = CallRecord(owner=record.owner, dialect=record.dialect, request={}, began=record.began, parent=record.parent)
    bare.duration, bare.purpose, bare.model_name = record.duration, record.purpose, record.model_name
    bare.fail("not_recorded", f"the call could not be recorded: {type(error).__name__}; the proxy's log says why")
    return span_of(bare, Capture(content=False, tokens=False))


def _error(record: CallRecord, kind: str, capture: Capture) -> str:
    """Say what went wrong. A backend's words may be those of the request: they are content."""
    said = record.error or kind
    if (kind in _QUOTING or kind.isdecimal()) and (not capture.content or capture.redact is not None):
        code = f" ({record.error_code})" if record.error_code not in (None, kind) else ""
        said = f"{record.address}: {kind}{code}; what it said is not recorded"
    return whole(hide_in_text(said[: 2 * MAX_ERROR_CHARACTERS])[:MAX_ERROR_CHARACTERS])


def _parameters(request: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: request[field]
        for field, name in _PARAMETERS.items()
        if isinstance(request.get(field), int | float) and not isinstance(request.get(field), bool)
    }
    choices = request.get("n")
    if isinstance(choices, int) and choices > 1:
        found["gen_ai.request.choice.count"] = choices
    stop = request.get("stop") or request.get("stop_sequences")
    if isinstance(stop, str):
        stop = [stop]
    if isinstance(stop, list) and all(isinstance(word, str) for word in stop):
        found["gen_ai.request.stop_sequences"] = [whole(word) for word in stop]
    if request.get("stream") is True:
        found["gen_ai.request.stream"] = True
    return found


def _numbers(record: CallRecord) -> dict[str, Any]:
    answer = record.answer
    known = {
        "gen_ai.usage.input_tokens": answer.input_tokens,
        "gen_ai.usage.output_tokens": answer.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": answer.cached_tokens,
        COST: record.cost,
        FIRST_CHUNK_SECONDS: record.first_chunk_seconds,
        WEIGHT_VERSION: record.weight_version,
        "server.address": record.address,
        "http.response.status_code": record.status or None,
    }
    if record.last_weight_version != record.weight_version:
        known[LAST_WEIGHT_VERSION] = record.last_weight_version
    if record.tries > 1:
        known[TRIES] = record.tries
    return {name: value for name, value in known.items() if value is not None}


def _tokens(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if answer.prompt_token_ids is not None:
        found[genai.PROMPT_TOKEN_IDS] = answer.prompt_token_ids
    if any(choice.token_ids is not None for choice in answer.choices):
        found[genai.RESPONSE_TOKEN_IDS] = _per_choice(answer.choices, [choice.token_ids for choice in answer.choices])
    if any(choice.logprobs is not None for choice in answer.choices):
        found[genai.RESPONSE_LOGPROBS] = _per_choice(answer.choices, [choice.logprobs for choice in answer.choices])
    return found


def _per_choice(choices: Sequence[AnswerChoice], values: list[Any]) -> Any:
    """Return one list for one choice, else a list of lists; a choice without values has an empty one."""
    return values[0] if len(choices) == 1 else [value if value is not None else [] for value in values]


def _content(record: CallRecord, redact: Redact | None) -> dict[str, str]:
    dialect, request = record.dialect, record.request
    said = {
        genai.INPUT_MESSAGES: ("input", dialect.messages(request)),
        genai.SYSTEM_INSTRUCTIONS: ("instructions", dialect.instructions(request)),
        genai.TOOL_DEFINITIONS: ("tools", dialect.tools(request)),
        genai.OUTPUT_MESSAGES: ("output", parts.of_choices(record.answer)),
    }
    found = {}
    for name, (what, value) in said.items():
        if not value:
            continue
        if redact is None:
            found[name] = hide_attempt_keys(text(value))
            continue
        try:
            found[name] = hide_attempt_keys(text(redact(what, value)))
        except Exception:
            logger.exception("lightning.redaction_failed what=%s; it is not recorded", what)
    return found
