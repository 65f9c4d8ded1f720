"""What an agent did in a run, in words: its conversations with models, and its operations."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_core.adapter import TraceToMessages
from lightning_core.semconv import AGL_OPERATION, LightningSpanAttributes
from lightning_core.types import Span

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


def turns_of(spans: Sequence[Span], adapter: TraceToMessages) -> list[str]:
    """Say what an agent and its models said to each other.

    What a call repeats of the call before it is left out.
    """
    turns: list[str] = []
    said: list[dict[str, Any]] = []
    for conversation in adapter.adapt(spans):
        messages = conversation["messages"]
        goes_on = bool(said) and messages[: len(said)] == said
        if turns and not goes_on:
            turns.append("--- another conversation ---")
        turns.extend(turn for message in messages[len(said) if goes_on else 0 :] for turn in _turns(message))
        said = messages
    return turns


def operations_of(spans: Sequence[Span]) -> list[str]:
    """Say which operations an agent did, with what went in and came out."""
    return [_operation(span) for span in spans if span.name == AGL_OPERATION or _NAME in span.attributes]


def _operation(span: Span) -> str:
    given = ", ".join(f"{name}={value}" for name, value in _below(_INPUT, span.attributes))
    outputs = [str(value) if not name else f"{name}={value}" for name, value in _below(_OUTPUT, span.attributes)]
    text = f"{span.attributes.get(_NAME, span.name)}({given})"
    if span.status.status_code == "ERROR":
        return f"{text} failed: {span.status.description or 'no reason given'}"
    return f"{text} gave {', '.join(outputs)}" if outputs else text


def _below(prefix: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name == prefix or name.startswith(f"{prefix}."):
            yield name.removeprefix(prefix).removeprefix(".").removeprefix("args."), value


def _turns(message: Mapping[str, Any]) -> Iterator[str]:
    role = str(message.get("role", "unknown"))
    if text := _text(message.get("content")):
        yield f"{role}: {text}"
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield f"{role} calls the tool {function.get('name')} with {function.get('arguments')}"


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=repr)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', 'something that is no text')}]"
    return str(part)
