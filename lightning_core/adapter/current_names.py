"""Spans under the names that OpenTelemetry's GenAI conventions have now, for those who read them elsewhere.

https://github.com/open-telemetry/semantic-conventions-genai
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, nested
from lightning_core.adapter.calls import ModelCall, call_of, is_call_span
from lightning_core.adapter.tree import TraceTree
from lightning_core.adapter.usage import usage_of
from lightning_core.rewards import get_rewards_from_span
from lightning_core.semconv import LightningSpanAttributes
from lightning_core.types import Event, Span

_OPERATIONS = {"completion": "text_completion", "responses": "chat"}
"""Values of `genai.OPERATION_NAME` that the conventions do not have, and what they call it."""
_PROVIDERS = (genai.PROVIDER_NAME, "gen_ai.system", "llm.provider", "llm.system")
_REPLACED = {
    genai.INPUT_MESSAGES: (genai.PROMPT, genai.OPERATION_INPUT, genai.OPENINFERENCE_INPUT),
    genai.OUTPUT_MESSAGES: (genai.COMPLETION, genai.OPERATION_OUTPUT, genai.OPENINFERENCE_OUTPUT),
    genai.TOOL_DEFINITIONS: (*genai.TOOL_PREFIXES, genai.OPENINFERENCE_TOOLS),
}
"""What begins with one of these is left out where the messages or tools were read."""
_REPLACED_NAMES = frozenset(
    {
        *("gen_ai.system", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens", "gen_ai.request.type"),
        *("llm.provider", "llm.system", "llm.usage.prompt_tokens", "llm.usage.completion_tokens", "llm.request.type"),
        *("llm.token_count.prompt", "llm.token_count.completion", genai.OPENINFERENCE_FINISH_REASON),
        *(genai.OPENINFERENCE_KIND, genai.OPENINFERENCE_PARAMETERS, *genai.OPENINFERENCE_MODELS),
    }
)
_PARAMETERS = {
    **{
        name: f"gen_ai.request.{name}"
        for name in ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
    },
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.choice.count",
    "stop": "gen_ai.request.stop_sequences",
}
_PLAIN = {
    "gen_ai.system": genai.PROVIDER_NAME,
    "gen_ai.usage.prompt_tokens": genai.INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": genai.OUTPUT_TOKENS,
}
"""Names that only are others now."""
_TOOL_NAMES = (genai.TOOL_NAME, f"{genai.TOOL_SPAN}.name")
_TOOL_IDS = (genai.TOOL_CALL_ID, f"{genai.TOOL_SPAN}.call.id", f"{genai.TOOL_SPAN}.id")
_TOOL_RESULTS = (
    genai.TOOL_CALL_RESULT,
    f"{genai.TOOL_SPAN}.result",
    genai.OPERATION_OUTPUT,
    "output.value",
    "traceloop.entity.output",
)
_KINDS = ("kind", "traceloop.span.kind", "agentops.span.kind")
_OPERATION_NAMES = (LightningSpanAttributes.OPERATION_NAME.value, "traceloop.entity.name", "operation.name")
"""Under one of these an operation has its name, which may be a tool by its kind."""


def with_current_names(span: Span) -> Span:
    """Copy a span, with what the conventions have a name for under that name.

    A model call is `chat` with its messages, tools and numbers; a tool `execute_tool`, an agent `invoke_agent`; a
    reward is an event `gen_ai.evaluation.result`. Old names that are replaced are left out. All else stays.
    """
    attributes: dict[str, Any] = dict(span.attributes)
    agent = TraceTree(span.span_id, span).agent_name()
    tool = _tool_name(attributes)
    name = span.name
    if is_call_span(span):
        attributes = _call_attributes(span)
        name = f"{attributes[genai.OPERATION_NAME]} {attributes.get(genai.REQUEST_MODEL, '')}".rstrip()
    elif genai.OPERATION_NAME in attributes:  # such as embeddings
        attributes = {_PLAIN.get(name, name): value for name, value in attributes.items()} | {
            name: value for name, value in attributes.items() if name not in _PLAIN
        }
    elif tool is not None:
        attributes = _tool_attributes(attributes, tool)
        name = f"execute_tool {tool}"
    elif agent is not None:
        attributes |= {genai.OPERATION_NAME: "invoke_agent", genai.AGENT_NAME: agent}
        name = f"invoke_agent {agent}"
    return span.model_copy(
        update={"name": name, "attributes": attributes, "events": [*span.events, *_evaluations(span)]}
    )


def chat_text(messages: Sequence[Mapping[str, Any]], finish_reasons: Sequence[str | None] = ()) -> str:
    """Return OpenAI's chat messages in the form of the conventions, as JSON.

    Args:
        messages: The messages.
        finish_reasons: For answers, why each ended.
    """
    told = [{"role": message.get("role"), "parts": list(_parts(message))} for message in messages]
    for message, reason in zip(told, finish_reasons, strict=False):
        message["finish_reason"] = "tool_call" if reason == "tool_calls" else reason
    return json.dumps(told, ensure_ascii=False)


def _call_attributes(span: Span) -> dict[str, Any]:
    given = span.attributes
    call = call_of([span], 0)
    operation = str(given.get(genai.OPERATION_NAME, "chat"))
    usage = usage_of(call)
    provider = next((str(given[name]).lower() for name in _PROVIDERS if given.get(name)), None)
    found = {
        genai.OPERATION_NAME: _OPERATIONS.get(operation, operation),
        genai.PROVIDER_NAME: provider,
        genai.REQUEST_MODEL: given.get(genai.REQUEST_MODEL) or given.get("llm.request.model_name") or call.model,
        genai.RESPONSE_MODEL: call.model,
        genai.RESPONSE_ID: call.response_id,
        genai.FINISH_REASONS: [choice.finish_reason for choice in call.choices if choice.finish_reason] or None,
        genai.INPUT_TOKENS: usage.input_tokens,
        genai.OUTPUT_TOKENS: usage.output_tokens,
        "gen_ai.usage.cost": usage.cost,
        **_parameters(given),
        **_content(call),
    }
    replaced = tuple(f"{each}." for name, prefixes in _REPLACED.items() if found.get(name) for each in prefixes)
    kept = {
        name: value for name, value in given.items() if not name.startswith(replaced) and name not in _REPLACED_NAMES
    }
    # What is there under its current name stays as its source wrote it.
    return (
        {name: value for name, value in found.items() if value is not None}
        | kept
        | {genai.OPERATION_NAME: found[genai.OPERATION_NAME]}
    )


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    asked = decoded(given.get(genai.OPENINFERENCE_PARAMETERS))
    if not isinstance(asked, Mapping):
        return {}
    found = {_PARAMETERS[name]: value for name, value in asked.items() if name in _PARAMETERS}
    if isinstance(stop := found.get("gen_ai.request.stop_sequences"), str):
        found["gen_ai.request.stop_sequences"] = [stop]
    return found


def _content(call: ModelCall) -> dict[str, str]:
    found = {}
    if call.messages:
        found[genai.INPUT_MESSAGES] = chat_text(call.messages)
    if call.answers:
        found[genai.OUTPUT_MESSAGES] = chat_text(call.answers, [choice.finish_reason for choice in call.choices])
    if call.tools:
        tools = [{"type": "function", **tool["function"]} for tool in call.tools]
        found[genai.TOOL_DEFINITIONS] = json.dumps(tools, ensure_ascii=False)
    return found


def _parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if message.get("reasoning_content"):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    if isinstance(content, str) and content:
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "text":
            yield {"type": "text", "content": part.get("text")}
        elif part.get("type") == "image_url":
            image = part.get("image_url")
            yield {"type": "uri", "modality": "image", "uri": image.get("url") if isinstance(image, Mapping) else image}
        else:
            yield part
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = decoded(function["arguments"])
        yield {"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments}


def _tool_name(attributes: Mapping[str, Any]) -> str | None:
    is_tool = any(attributes.get(name) == "tool" for name in _KINDS)
    names = (*_TOOL_NAMES, *(_OPERATION_NAMES if is_tool else ()))
    return next((attributes[name] for name in names if isinstance(attributes.get(name), str)), None)


def _tool_attributes(given: Mapping[str, Any], tool: str) -> dict[str, Any]:
    is_openinference = genai.OPENINFERENCE_KIND in given  # its parameters are the tool's schema
    inputs = (
        ("input.value",)
        if is_openinference
        else (f"{genai.TOOL_SPAN}.parameters", genai.OPERATION_INPUT, "traceloop.entity.input")
    )
    found = {
        genai.OPERATION_NAME: "execute_tool",
        genai.TOOL_NAME: tool,
        genai.TOOL_CALL_ID: next((given[name] for name in _TOOL_IDS if name in given), None),
        genai.TOOL_CALL_ARGUMENTS: nested(given, genai.TOOL_CALL_ARGUMENTS, *inputs),
        genai.TOOL_CALL_RESULT: nested(given, *_TOOL_RESULTS),
    }
    told = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }
    replaced = (*_TOOL_NAMES, *_TOOL_IDS, *_TOOL_RESULTS, *inputs, genai.OPENINFERENCE_KIND)
    return {
        name: value
        for name, value in given.items()
        if name not in replaced and not name.startswith(tuple(f"{each}." for each in (*inputs, *_TOOL_RESULTS)))
    } | told


def _evaluations(span: Span) -> Iterator[Event]:
    try:
        rewards = get_rewards_from_span(span)
    except ValueError:  # a broken reward is not one
        return
    for reward in rewards:
        attributes = {genai.EVALUATION_NAME: reward.name, genai.EVALUATION_VALUE: float(reward.value)}
        yield Event(name=genai.EVALUATION_EVENT, attributes=attributes, timestamp=span.end_time)
