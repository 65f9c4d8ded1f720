"""Makes the span of a call, by OpenTelemetry's GenAI conventions.

https://github.com/open-telemetry/semantic-conventions-genai
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_core.adapter import genai
from lightning_core.secrets import hide_in_text
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.types import OtelResource, Span, TraceStatus
from lightning_core.types.text import hide_attempt_keys
from lightning_proxy.answer import Answer, AnswerChoice, integer, mapping, output_messages
from lightning_proxy.apis import Dialect
from lightning_proxy.call import Call, Outcome
from lightning_proxy.jsons import replace_surrogates, text

logger = logging.getLogger(__name__)

WEIGHT_VERSION = "agentlightning.weight_version"
"""The version of the weights when the call was sent."""
LAST_WEIGHT_VERSION = "agentlightning.weight_version.end"
"""The same when it ended, where that is another one."""
HAS_TOKEN_IDS = "agentlightning.has_token_ids"
"""False for a call of which the engine gave no token ids."""
DROPPED_TOOLS = "agentlightning.dropped_tools"
"""The types of the tools that the agent offered, and that the model's engine does not have."""
IGNORED_PARAMETERS = "agentlightning.ignored_parameters"
"""The names of the parameters that the model's engine does not have, and that the call was answered without."""
TRIES = "agentlightning.tries"
"""How often the call was sent, where that was more than once."""
ANSWERED_BY = "agentlightning.model"
"""The name in the model list of the model that answered, where the agent asked for another name."""
FIRST_CHUNK_SECONDS = "gen_ai.response.time_to_first_chunk"
TOOL_CHOICE = "gen_ai.request.tool_choice"
"""`auto` or the like, or the JSON of an object, as the agent sent it."""
REASONING_EFFORT = "gen_ai.request.reasoning_effort"
REASONING_BUDGET = "gen_ai.request.reasoning_budget_tokens"
PREVIOUS_RESPONSE = "gen_ai.request.previous_response_id"
"""The response that a call of the responses API continues: that one's span has what was said before."""
SAFETY_SETTINGS = "gen_ai.request.safety_settings"
"""JSON of what a call of Gemini's API asks for, and no engine is asked."""
OUTPUT_SCHEMA = "gen_ai.request.structured_output_schema"
"""The JSON schema that an answer is to have."""

MAX_ERROR_CHARACTERS = 2_000
"""What is recorded of an error."""

_QUOTING = frozenset({"backend_broke", "backend_error", "backend_garbage", "invalid_request", "not_convertible"})
"""Errors that say what was asked or what the backend said, as do those that are its HTTP status."""
_OK = TraceStatus(status_code="OK")
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}
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
"""Is given `input`, `output`, `instructions`, `tools` or `schema`, and a value; returns the value to record."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What is recorded of what was said."""

    content: bool = True
    """Whether messages and tools are."""
    tokens: bool = True
    """Whether token ids are; a text can be made of them."""
    redact: Redact | None = None
    """Changes messages and tools before they are recorded. Token ids are not changed: see `tokens`."""


def span_of(call: Call, capture: Capture) -> Span:
    """Make the span of a call that has ended, which belongs to an attempt. The caller sets its number."""
    assert call.dialect is not None
    route, outcome = call.route, call.outcome
    model = None if route.replica is None else route.replica.model_name
    attributes = attributes_of(call.dialect, route.fields or {}, outcome.answer, capture, model=model)
    attributes.update(_call_attributes(call))
    status = _OK
    if outcome.error_kind is not None:
        attributes[genai.ERROR_TYPE] = outcome.error_kind
        status = TraceStatus(status_code="ERROR", description=_error(call, outcome.error_kind, capture))
    return _span(call, attributes, status)


def bare_span_of(call: Call, error: Exception) -> Span:
    """Make the span of a call of which only this can be said: that it was made, and why it could not be recorded."""
    message = f"the call could not be recorded: {type(error).__name__}; the proxy's log says why"
    outcome = Outcome(error_kind="not_recorded", error=message, seconds=call.outcome.seconds)
    bare = replace(call, outcome=outcome, route=replace(call.route, fields=None))
    return span_of(bare, Capture(content=False, tokens=False))


def attributes_of(
    dialect: Dialect, request: dict[str, Any], answer: Answer, capture: Capture, *, model: str | None = None
) -> dict[str, Any]:
    """Return the attributes of a request and its answer, for any caller.

    Args:
        dialect: The API.
        request: The request.
        answer: What the dialect read of the answer.
        capture: What is recorded.
        model: The model where the request names none.
    """
    asked = request.get("model") or model
    attributes: dict[str, Any] = {
        genai.OPERATION_NAME: dialect.operation,
        "gen_ai.provider.name": dialect.provider,
        **({} if asked is None else {genai.REQUEST_MODEL: hide_attempt_keys(replace_surrogates(str(asked)))}),
        **_parameters(request),
    }
    known = {
        "gen_ai.usage.input_tokens": answer.input_tokens,
        "gen_ai.usage.output_tokens": answer.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": answer.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": answer.written_tokens,
        "gen_ai.usage.reasoning.output_tokens": answer.reasoning_tokens,
        genai.RESPONSE_MODEL: None if answer.model is None else replace_surrogates(answer.model),
        genai.RESPONSE_ID: None if answer.id is None else replace_surrogates(answer.id),
    }
    attributes.update({name: value for name, value in known.items() if value is not None})
    if any(choice.finish_reason is not None for choice in answer.choices):
        attributes[genai.FINISH_REASONS] = [replace_surrogates(choice.finish_reason or "") for choice in answer.choices]
    if capture.tokens:
        attributes.update(_tokens(answer))
    attributes[HAS_TOKEN_IDS] = answer.prompt_token_ids is not None and any(
        choice.token_ids is not None for choice in answer.choices
    )
    if capture.content:
        attributes.update(_content(dialect, request, answer, capture.redact))
    return attributes


def _span(call: Call, attributes: dict[str, Any], status: TraceStatus) -> Span:
    assert call.dialect is not None
    assert call.owner is not None
    rollout_id, attempt_id = call.owner.rollout_id, call.owner.attempt_id
    trace_id, parent_id = call.parent or (None, None)
    model = attributes.get(genai.REQUEST_MODEL)
    resource = {
        "service.name": genai.PROXY_SERVICE,
        LightningResourceAttributes.ROLLOUT_ID.value: rollout_id,
        LightningResourceAttributes.ATTEMPT_ID.value: attempt_id,
    }
    span = Span.from_attributes(
        attributes={},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=call.dialect.operation if model is None else f"{call.dialect.operation} {model}",
        trace_id=trace_id,
        parent_id=parent_id,
        start_time=call.began,
        end_time=call.began + call.outcome.seconds,
        resource=OtelResource(attributes=resource, schema_url=""),
        status=status,
    )
    span.attributes = attributes  # which are what their fields take: checking each token would take as long as the rest
    return span


def _error(call: Call, kind: str, capture: Capture) -> str:
    """Return what went wrong. A backend may repeat the request: then its message is content."""
    message, replica, error_code = call.outcome.error or kind, call.route.replica, call.outcome.error_code
    if (kind in _QUOTING or kind.isdecimal()) and (not capture.content or capture.redact is not None):
        code = "" if error_code in (None, kind) else f" ({error_code})"
        address = "the proxy" if replica is None else replica.backend.address
        message = f"{address}: {kind}{code}; what it said is not recorded"
    return replace_surrogates(hide_in_text(message[: 2 * MAX_ERROR_CHARACTERS])[:MAX_ERROR_CHARACTERS])


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
        found["gen_ai.request.stop_sequences"] = [replace_surrogates(word) for word in stop]
    if request.get("stream") is True:
        found["gen_ai.request.stream"] = True
    if (choice := request.get("tool_choice")) is not None:
        found[TOOL_CHOICE] = replace_surrogates(choice if isinstance(choice, str) else text(choice))
    given = {
        REASONING_EFFORT: request.get("reasoning_effort")
        or mapping(request.get("reasoning") or request.get("output_config")).get("effort"),
        PREVIOUS_RESPONSE: request.get("previous_response_id"),
        "gen_ai.prompt.name": mapping(request.get("prompt")).get("id"),
        "gen_ai.output.type": _OUTPUT_TYPES.get(str(_format(request).get("type"))),
        "openai.request.service_tier": request.get("service_tier"),
    }
    found.update({name: replace_surrogates(value) for name, value in given.items() if isinstance(value, str) and value})
    if request.get("safety_settings"):  # which no engine has
        found[SAFETY_SETTINGS] = text(request["safety_settings"])
    budget = integer(mapping(request.get("thinking")).get("budget_tokens"))
    return found if budget is None else {**found, REASONING_BUDGET: budget}


def _format(request: dict[str, Any]) -> dict[str, Any]:
    """Return the form that an answer is to have, as any of the APIs says it."""
    return mapping(
        request.get("response_format")
        or request.get("output_format")
        or mapping(request.get("text") or request.get("output_config")).get("format")
    )


def _schema(request: dict[str, Any]) -> Any:
    form = _format(request)
    return form.get("schema") or mapping(form.get("json_schema")).get("schema")


def _call_attributes(call: Call) -> dict[str, Any]:
    route, replica = call.route, call.route.replica
    ends_with = None if route.last_weight_version == route.weight_version else route.last_weight_version
    name = None if replica is None or call.model in (None, replica.model_name) else replica.model_name
    known: dict[str, Any] = {
        genai.PURPOSE: call.purpose,
        genai.COST: call.outcome.cost,
        FIRST_CHUNK_SECONDS: call.outcome.first_chunk_seconds,
        WEIGHT_VERSION: route.weight_version,
        LAST_WEIGHT_VERSION: ends_with,
        "server.address": None if replica is None else replica.backend.address,
        "http.response.status_code": call.outcome.status or None,
        ANSWERED_BY: name,
        TRIES: route.tries if route.tries > 1 else None,
        DROPPED_TOOLS: list(route.dropped_tools) or None,
        IGNORED_PARAMETERS: [replace_surrogates(name) for name in route.ignored] or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tokens(answer: Answer) -> dict[str, Any]:
    tokens: dict[str, Any] = {}
    if answer.prompt_token_ids is not None:
        tokens[genai.PROMPT_TOKEN_IDS] = answer.prompt_token_ids
    if any(choice.token_ids is not None for choice in answer.choices):
        tokens[genai.RESPONSE_TOKEN_IDS] = _per_choice(answer.choices, [choice.token_ids for choice in answer.choices])
    if any(choice.logprobs is not None for choice in answer.choices):
        tokens[genai.RESPONSE_LOGPROBS] = _per_choice(answer.choices, [choice.logprobs for choice in answer.choices])
    return tokens


def _per_choice(choices: Sequence[AnswerChoice], values: list[Any]) -> Any:
    """Return one list for one choice, else a list of lists; a choice without values has an empty one."""
    return values[0] if len(choices) == 1 else [value if value is not None else [] for value in values]


def _content(dialect: Dialect, request: dict[str, Any], answer: Answer, redact: Redact | None) -> dict[str, str]:
    content = {
        genai.INPUT_MESSAGES: ("input", dialect.messages(request)),
        genai.SYSTEM_INSTRUCTIONS: ("instructions", dialect.instructions(request)),
        genai.TOOL_DEFINITIONS: ("tools", dialect.tools(request)),
        genai.OUTPUT_MESSAGES: ("output", output_messages(answer)),
        OUTPUT_SCHEMA: ("schema", _schema(request)),
    }
    attributes = {}
    for name, (what, value) in content.items():
        if not value:
            continue
        try:
            attributes[name] = hide_attempt_keys(text(value if redact is None else redact(what, value)))
        except Exception:
            if redact is None:
                raise
            logger.exception("lightning.redaction_failed what=%s; it is not recorded", what)
    return attributes
