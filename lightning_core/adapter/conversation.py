"""What was said in a model call, by whichever of the known ways a span tells it."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_core.adapter import genai
from lightning_core.adapter.attributes import decoded, entries, nested, unflatten
from lightning_core.adapter.chat import assistant_message, chat_messages, chat_tool_calls, chat_tools
from lightning_core.adapter.tokens import raw_fields
from lightning_core.types import Span

Messages = list[dict[str, Any]]
_Reader = Callable[[Span, Mapping[str, Any]], Messages]


def request_messages(span: Span) -> Messages:
    """Read the messages that the model was given; none when the span has none."""
    return _first_of((_genai_request, _indexed_request, _weave_request, _event_request, _raw_request), span)


def answer_messages(span: Span) -> Messages:
    """Read the assistant's message of each choice; none when the span has none."""
    return _first_of((_genai_answers, _indexed_answers, _weave_answers, _event_answers, _raw_answers), span)


def offered_tools(span: Span) -> list[dict[str, Any]]:
    """Read the tools that the model was offered; none when the span has none."""
    attributes = _with_details(span)
    found = chat_tools(attributes.get(genai.TOOL_DEFINITIONS))
    if not found:
        found = chat_tools(nested(attributes, *genai.TOOL_PREFIXES))
    if not found:
        found = chat_tools(nested(attributes, genai.INPUT_TOOLS))
    if not found and span.name == genai.LITELLM_RAW_SPAN:
        found = chat_tools(raw_fields(attributes).get("tools"))
    return found


def raw_choices(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the choices of LiteLLM's raw span, as the provider gave them."""
    return entries(decoded(raw_fields(attributes).get("choices")))


def _first_of(readers: tuple[_Reader, ...], span: Span) -> Messages:
    attributes = _with_details(span)
    return next((found for read in readers if (found := read(span, attributes))), [])


def _with_details(span: Span) -> Mapping[str, Any]:
    """Return the span's attributes, and those of the events that carry what the span could."""
    attributes: Mapping[str, Any] = span.attributes
    for event in span.events:
        if event.name == genai.DETAILS_EVENT or event.name in genai.CONTENT_EVENTS:
            attributes = {**event.attributes, **attributes}
    return attributes


def _genai_request(_: Span, attributes: Mapping[str, Any]) -> Messages:
    messages = chat_messages(attributes.get(genai.INPUT_MESSAGES))
    instructions = decoded(attributes.get(genai.SYSTEM_INSTRUCTIONS))
    if messages and isinstance(instructions, (list, tuple)):
        return chat_messages([{"role": "system", "parts": instructions}]) + messages
    return messages


def _genai_answers(_: Span, attributes: Mapping[str, Any]) -> Messages:
    return chat_messages(attributes.get(genai.OUTPUT_MESSAGES), role="assistant")


def _indexed_request(_: Span, attributes: Mapping[str, Any]) -> Messages:
    return chat_messages(nested(attributes, genai.PROMPT))


def _indexed_answers(_: Span, attributes: Mapping[str, Any]) -> Messages:
    return chat_messages(nested(attributes, genai.COMPLETION), role="assistant")


def _weave_request(_: Span, attributes: Mapping[str, Any]) -> Messages:
    return chat_messages(nested(attributes, genai.INPUT_CHAT))


def _weave_answers(_: Span, attributes: Mapping[str, Any]) -> Messages:
    return _of_choices(entries(nested(attributes, genai.OUTPUT_CHOICES)))


def _raw_request(span: Span, attributes: Mapping[str, Any]) -> Messages:
    return chat_messages(raw_fields(attributes).get("messages")) if span.name == genai.LITELLM_RAW_SPAN else []


def _raw_answers(span: Span, attributes: Mapping[str, Any]) -> Messages:
    return _of_choices(raw_choices(attributes)) if span.name == genai.LITELLM_RAW_SPAN else []


def _event_request(span: Span, _: Mapping[str, Any]) -> Messages:
    return [
        message
        for event in span.events
        if event.name in genai.MESSAGE_EVENTS
        for message in chat_messages([event.attributes], role=genai.MESSAGE_EVENTS[event.name])
    ]


def _event_answers(span: Span, _: Mapping[str, Any]) -> Messages:
    choices = [event.attributes for event in span.events if event.name == genai.CHOICE_EVENT]
    return _of_choices([unflatten(choice.items()) for choice in choices])


def _of_choices(choices: list[Any]) -> Messages:
    """Read choices of OpenAI's API: a message, or its fields beside the finish reason, or a plain text."""
    answers: Messages = []
    for choice in choices:
        if not isinstance(choice, Mapping):
            continue
        message = decoded(choice.get("message"))
        fields = message if isinstance(message, Mapping) else choice
        content = message if isinstance(message, str) else fields.get("content", fields.get("text"))
        answers.append(assistant_message(content, chat_tool_calls(fields.get("tool_calls"))))
    return answers
