"""How each source of spans records a model call: a table with a row for each, and readers that go through it.

The rows are OpenTelemetry's GenAI conventions, AgentOps and Traceloop, the answers of OpenAI's API as Weave records
them, and OpenInference. Of several names, or rows, the first counts under which a span has something.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested
from lightning_core.adapter.conversation import Messages, as_text, chat_messages, chat_tools
from lightning_core.adapter.usage import Usage
from lightning_core.types import Span

Attributes = Mapping[str, Any]


def _of_choice(entry: Any) -> Any:
    """Take the message out of a choice of OpenAI's API, where it is a message, a text, or the fields of one."""
    if not isinstance(entry, Mapping):
        return None
    message = decoded(entry.get("message"))
    fields = message if isinstance(message, Mapping) else entry
    content = message if isinstance(message, str) else fields.get("content", fields.get("text"))
    return {**fields, "role": "assistant", "content": content}


def _of_openinference(entry: Any) -> Any:
    """Turn a message of OpenInference into OpenAI's; https://github.com/Arize-ai/openinference, in spec/."""
    if (message := _inner(entry, "message")) is None:
        return None
    parts: list[dict[str, Any]] = []
    for each in entries(message.get("contents")):
        part = _inner(each, "message_content") or {}
        if part.get("type") == "image":
            url = (_inner(part.get("image"), "image") or {}).get("url")
            parts.append({"type": "image_url", "image_url": {"url": url}})
        elif part:
            parts.append({"type": "text", "text": as_text(part.get("text"))})
    calls = [_inner(each, "tool_call") for each in entries(message.get("tool_calls"))]
    return {**message, "tool_calls": calls, **({"content": parts} if parts else {})}


def _tool_of_openinference(entry: Any) -> Any:
    return decoded((_inner(entry, "tool") or {}).get("json_schema"))


def _inner(entry: Any, name: str) -> Mapping[str, Any] | None:
    """Return what an entry has under the name that OpenInference repeats in each of a list."""
    found = entry.get(name) if isinstance(entry, Mapping) else None
    return found if isinstance(found, Mapping) else None


class Dialect(NamedTuple):
    """Where one kind of source has what."""

    messages: str
    answers: str
    tools: tuple[str, ...]
    is_flat: bool = True
    """Whether these three begin the names of what they hold; else it is their value."""
    message_form: Callable[[Any], Any] = decoded
    answer_form: Callable[[Any], Any] = decoded
    tool_form: Callable[[Any], Any] = decoded
    models: tuple[str, ...] = ()
    response_ids: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()
    """In US dollars. No price list is kept here: a cost is known where the source of a span knows it."""


DIALECTS = (
    Dialect(
        messages=genai.INPUT_MESSAGES,
        answers=genai.OUTPUT_MESSAGES,
        tools=(genai.TOOL_DEFINITIONS,),
        is_flat=False,
        models=(genai.RESPONSE_MODEL, genai.REQUEST_MODEL),
        response_ids=(genai.RESPONSE_ID,),
        input_tokens=(genai.INPUT_TOKENS,),
        output_tokens=(genai.OUTPUT_TOKENS,),
        costs=(genai.COST,),
    ),
    Dialect(
        messages=genai.PROMPT,
        answers=genai.COMPLETION,
        tools=("gen_ai.request.functions", "gen_ai.request.tools", "llm.request.functions"),
        input_tokens=("gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens"),
        output_tokens=("gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
        costs=("gen_ai.usage.total_cost", "gen_ai.usage.cost_usd", "gen_ai.cost.total_cost", "litellm.cost.total"),
    ),
    Dialect(
        messages=genai.INPUT_CHAT,
        answers=genai.OUTPUT_CHOICES,
        tools=(genai.INPUT_TOOLS,),
        answer_form=_of_choice,
        models=(genai.OUTPUT_MODEL,),
        response_ids=(genai.OUTPUT_ID,),
        input_tokens=(f"{genai.OPERATION_OUTPUT}.usage.prompt_tokens",),
        output_tokens=(f"{genai.OPERATION_OUTPUT}.usage.completion_tokens",),
    ),
    Dialect(
        messages=genai.OPENINFERENCE_INPUT,
        answers=genai.OPENINFERENCE_OUTPUT,
        tools=(genai.OPENINFERENCE_TOOLS,),
        message_form=_of_openinference,
        answer_form=_of_openinference,
        tool_form=_tool_of_openinference,
        models=("llm.response.model_name", "llm.request.model_name", "llm.model_name"),
        input_tokens=("llm.token_count.prompt",),
        output_tokens=("llm.token_count.completion",),
        costs=("llm.cost.total",),
    ),
)

TOOL_INPUTS = (genai.TOOL_CALL_ARGUMENTS, "tool.parameters", genai.OPERATION_INPUT, "traceloop.entity.input")
TOOL_RESULTS = (
    *(genai.TOOL_CALL_RESULT, "tool.result", genai.OPERATION_OUTPUT),
    *("output.value", "traceloop.entity.output"),
)
"""Under one of these the span of a tool, or of an operation, has what it returned; of `TOOL_INPUTS`, what it took."""

MODELS = tuple(name for each in DIALECTS for name in each.models)
"""The attributes that name a model."""
_RESPONSE_IDS = tuple(name for each in DIALECTS for name in each.response_ids)
_INPUT_TOKENS = tuple(name for each in DIALECTS for name in each.input_tokens)
_OUTPUT_TOKENS = tuple(name for each in DIALECTS for name in each.output_tokens)
_COSTS = tuple(name for each in DIALECTS for name in each.costs)
_SIGNS = (
    *(f"{each}.0.{field}" for each in (genai.PROMPT, genai.COMPLETION) for field in ("role", "content")),
    *(f"{each}.0.finish_reason" for each in (genai.COMPLETION, genai.OUTPUT_CHOICES)),
    *(genai.RESPONSE_ID, genai.PROMPT_TOKEN_IDS, genai.RESPONSE_TOKEN_IDS),
    *(f"{genai.OUTPUT_CHOICES}.0.index", genai.OUTPUT_PROMPT_TOKEN_IDS),
)
"""An attribute of these says that a span is of a model call, unless its operation is said to be another one."""


def is_call_span(span: Span) -> bool:
    """Tell whether a span is of a model call, by what its source writes."""
    attributes = span.attributes
    operation = attributes.get(genai.OPERATION_NAME)
    if operation is not None:
        return operation in genai.INFERENCE_OPERATIONS
    if genai.OPENINFERENCE_KIND in attributes:
        return bool(attributes[genai.OPENINFERENCE_KIND] == "LLM")
    return any(attributes.get(name) in ("chat", "completion") for name in genai.REQUEST_TYPES) or any(
        sign in attributes for sign in _SIGNS
    )


def attributes_of(span: Span) -> Attributes:
    """Return the attributes of a span, with those of the event that has its messages."""
    for event in span.events:
        if event.name == genai.CONTENT_EVENT:
            return {**event.attributes, **span.attributes}
    return span.attributes


def _recorded(attributes: Attributes, dialect: Dialect, *names: str) -> Any:
    return nested(attributes, *names) if dialect.is_flat else attributes.get(names[0])


def request_messages(span: Span) -> Messages:
    """Read the messages that the model was given; none when the span has none."""
    attributes = attributes_of(span)
    for dialect in DIALECTS:
        if found := chat_messages(_recorded(attributes, dialect, dialect.messages), form=dialect.message_form):
            instructions = decoded(attributes.get(genai.SYSTEM_INSTRUCTIONS))
            if dialect is DIALECTS[0] and isinstance(instructions, (list, tuple)):
                system = chat_messages([{"role": "system", "parts": instructions}])
                return found if found[: len(system)] == system else system + found
            return found
    return []


def answer_messages(span: Span) -> Messages:
    """Read the assistant's message of each choice; none when the span has none."""
    attributes = attributes_of(span)
    for dialect in DIALECTS:
        given = _recorded(attributes, dialect, dialect.answers)
        if found := chat_messages(given, role="assistant", form=dialect.answer_form):
            return found
    return []


def offered_tools(span: Span) -> list[dict[str, Any]]:
    """Read the tools that the model was offered; none when the span has none."""
    attributes = attributes_of(span)
    for dialect in DIALECTS:
        if found := chat_tools(_recorded(attributes, dialect, *dialect.tools), form=dialect.tool_form):
            return found
    return []


def model(span: Span) -> str | None:
    """Read the model that answered, or the one that was asked for."""
    return _first_text(span, MODELS)


def response_id(span: Span) -> str | None:
    """Read the id that the engine or the provider gave to the answer; None where it was not recorded."""
    return _first_text(span, _RESPONSE_IDS)


def _first_text(span: Span, names: Sequence[str]) -> str | None:
    attributes = attributes_of(span)
    for name in names:
        if (found := attributes.get(name)) and isinstance(found, str):
            return found
    return None


def finish_reasons(span: Span) -> list[str | None]:
    """Read why each choice ended."""
    attributes = attributes_of(span)
    found = decoded(attributes.get(genai.FINISH_REASONS))
    if isinstance(found, (list, tuple)):
        return [str(reason) if reason is not None else None for reason in found]
    if isinstance(found := attributes.get(genai.OPENINFERENCE_FINISH_REASON), str):
        return [found]
    reasons: list[str | None] = []
    for prefix in (genai.COMPLETION, genai.OUTPUT_CHOICES):
        while (reason := attributes.get(f"{prefix}.{len(reasons)}.finish_reason")) is not None:
            reasons.append(str(reason))
        if reasons:
            break
    return reasons


def usage(spans: Sequence[Span]) -> Usage:
    """Read what a call used, each number from the first of its spans that has it."""
    numbers = [_number(spans, names) for names in (_INPUT_TOKENS, _OUTPUT_TOKENS, _COSTS)]
    input_tokens, output_tokens = (None if number is None else int(number) for number in numbers[:2])
    return Usage(1, input_tokens, output_tokens, numbers[2])


def _number(spans: Sequence[Span], names: Sequence[str]) -> float | None:
    for span in spans:
        for name in names:
            value: Any = span.attributes.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
                return value
    return None
