"""Spans under the names that OpenTelemetry's GenAI conventions have now, for those who read them elsewhere.

https://github.com/open-telemetry/semantic-conventions-genai
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import nested
from lightning_core.adapter.calls import call_of
from lightning_core.adapter.conversation import chat_text
from lightning_core.adapter.dialects import DIALECTS, TOOL_INPUTS, TOOL_RESULTS, is_call_span
from lightning_core.adapter.tree import TraceTree
from lightning_core.rewards import get_rewards_from_span
from lightning_core.semconv import LightningSpanAttributes
from lightning_core.types import Event, Span

_OPERATIONS = {"completion": "text_completion", "responses": "chat"}
"""Values of `genai.OPERATION_NAME` that the conventions do not have, and what they call it."""
_PROVIDERS = (genai.PROVIDER_NAME, "gen_ai.system", "llm.provider", "llm.system")
_REPLACED = {
    genai.INPUT_MESSAGES: (genai.PROMPT, genai.OPERATION_INPUT, genai.OPENINFERENCE_INPUT),
    genai.OUTPUT_MESSAGES: (genai.COMPLETION, genai.OPERATION_OUTPUT, genai.OPENINFERENCE_OUTPUT),
    genai.TOOL_DEFINITIONS: tuple(name for each in DIALECTS[1:] for name in each.tools),
}
"""What begins with one of these is left out where the messages or tools were read."""
_REPLACED_NAMES = {
    *(name for each in DIALECTS[1:] for name in (*each.models, *each.input_tokens, *each.output_tokens)),
    *(*_PROVIDERS[1:], *genai.REQUEST_TYPES, genai.OPENINFERENCE_FINISH_REASON),
    genai.OPENINFERENCE_KIND,
}
_TOOL_NAMES = (genai.TOOL_NAME, "tool.name")
_OPERATION_NAMES = (LightningSpanAttributes.OPERATION_NAME.value, "traceloop.entity.name", "operation.name")
"""Under one of these an operation has its name, which is a tool by its kind."""
_KINDS = ("kind", "traceloop.span.kind", "agentops.span.kind")
_TOOL_IDS = (genai.TOOL_CALL_ID, "tool.call.id", "tool.id")


def with_current_names(span: Span) -> Span:
    """Copy a span, with what the conventions have a name for under that name.

    A model call is `chat` with its messages, tools and numbers; a tool `execute_tool`, an agent `invoke_agent`; a
    reward is an event `gen_ai.evaluation.result`. Old names that are replaced are left out. All else stays.
    """
    attributes: dict[str, Any] = dict(span.attributes)
    name = span.name
    if is_call_span(span):
        attributes = _call_attributes(span)
        name = f"{attributes[genai.OPERATION_NAME]} {attributes.get(genai.REQUEST_MODEL, '')}".rstrip()
    elif genai.OPERATION_NAME in attributes:
        pass  # it says what it is, as embeddings do
    elif (tool := _tool_name(attributes)) is not None:
        attributes = _tool_attributes(attributes, tool)
        name = f"execute_tool {tool}"
    elif (agent := TraceTree(span.span_id, span).agent_name()) is not None:
        attributes |= {genai.OPERATION_NAME: "invoke_agent", genai.AGENT_NAME: agent}
        name = f"invoke_agent {agent}"
    events = [*span.events, *_evaluations(span)]
    return span.model_copy(update={"name": name, "attributes": attributes, "events": events})


def _call_attributes(span: Span) -> dict[str, Any]:
    given, call = span.attributes, call_of([span], 0)
    operation = str(given.get(genai.OPERATION_NAME, "chat"))
    reasons = [choice.finish_reason for choice in call.choices]
    tools = [{"type": "function", **tool["function"]} for tool in call.tools]
    found = {
        genai.PROVIDER_NAME: next((str(given[name]).lower() for name in _PROVIDERS if given.get(name)), None),
        genai.REQUEST_MODEL: given.get("llm.request.model_name") or call.model,
        genai.RESPONSE_MODEL: call.model,
        genai.RESPONSE_ID: call.response_id,
        genai.FINISH_REASONS: [reason for reason in reasons if reason] or None,
        genai.INPUT_TOKENS: call.usage.input_tokens,
        genai.OUTPUT_TOKENS: call.usage.output_tokens,
        genai.COST: call.usage.cost,
        genai.INPUT_MESSAGES: chat_text(call.messages) if call.messages else None,
        genai.OUTPUT_MESSAGES: chat_text(call.answers, reasons) if call.answers else None,
        genai.TOOL_DEFINITIONS: json.dumps(tools, ensure_ascii=False) if tools else None,
    }
    found = {name: value for name, value in found.items() if value is not None}
    replaced = [prefix for name, prefixes in _REPLACED.items() if name in found for prefix in prefixes]
    # What is there under its current name stays as its source wrote it.
    return (
        found
        | _without(given, replaced, _REPLACED_NAMES)
        | {genai.OPERATION_NAME: _OPERATIONS.get(operation, operation)}
    )


def _without(given: Mapping[str, Any], prefixes: list[str], names: set[str]) -> dict[str, Any]:
    beginnings = tuple(f"{each}." for each in prefixes)
    return {name: value for name, value in given.items() if name not in names and not name.startswith(beginnings)}


def _tool_name(attributes: Mapping[str, Any]) -> str | None:
    is_tool = any(attributes.get(name) == "tool" for name in _KINDS)
    names = (*_TOOL_NAMES, *(_OPERATION_NAMES if is_tool else ()))
    return next((attributes[name] for name in names if isinstance(attributes.get(name), str)), None)


def _tool_attributes(given: Mapping[str, Any], tool: str) -> dict[str, Any]:
    # OpenInference's parameters are the tool's schema.
    inputs = (genai.TOOL_CALL_ARGUMENTS, "input.value") if genai.OPENINFERENCE_KIND in given else TOOL_INPUTS
    found = {
        genai.OPERATION_NAME: "execute_tool",
        genai.TOOL_NAME: tool,
        genai.TOOL_CALL_ID: next((given[name] for name in _TOOL_IDS if name in given), None),
        genai.TOOL_CALL_ARGUMENTS: nested(given, *inputs),
        genai.TOOL_CALL_RESULT: nested(given, *TOOL_RESULTS),
    }
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }
    values = [*inputs, *TOOL_RESULTS]
    return _without(given, values, {*_TOOL_NAMES, *_TOOL_IDS, *values, genai.OPENINFERENCE_KIND}) | texts


def _evaluations(span: Span) -> Iterator[Event]:
    try:
        rewards = get_rewards_from_span(span)
    except ValueError:  # a broken reward is not one
        return
    for reward in rewards:
        attributes = {genai.EVALUATION_NAME: reward.name, genai.EVALUATION_VALUE: float(reward.value)}
        yield Event(name=genai.EVALUATION_EVENT, attributes=attributes, timestamp=span.end_time)
