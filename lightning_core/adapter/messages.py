"""From spans to conversations, as OpenAI's chat API and its fine-tuning files have them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

from lightning_core.adapter.attributes import nested
from lightning_core.adapter.base import TraceAdapter
from lightning_core.adapter.calls import ModelCall, agent_calls
from lightning_core.adapter.conversation import assistant_message, chat_tool_calls
from lightning_core.types import Span


class OpenAIMessages(TypedDict):
    """One conversation, up to and with one answer."""

    messages: list[dict[str, Any]]
    """The messages, as OpenAI's chat API has them."""
    tools: list[dict[str, Any]] | None
    """The tools that the model was offered; None for none."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Makes a conversation of each answer of each model call.

    A call with several choices gives a conversation for each. A call that failed, or whose answer was not recorded,
    gives its request's messages alone. A call of which no message was recorded gives nothing. A call that several
    sources recorded is one; one of a grader is left out.

    Tool calls of an answer come from what recorded the answer, or else from the spans of the tools that lie directly
    within the call (`tool.name`, `tool.parameters`, `tool.call.id`).
    """

    def adapt(self, source: Sequence[Span], /) -> list[OpenAIMessages]:
        """Return the conversations of an attempt, in the order of its calls."""
        tool_calls = _tool_calls_by_parent(source)
        return [conversation for call in agent_calls(source) for conversation in _conversations(call, tool_calls)]


def _conversations(call: ModelCall, tool_calls: dict[str, list[dict[str, Any]]]) -> Iterator[OpenAIMessages]:
    called = [tool_call for span in call.spans for tool_call in tool_calls.get(span.span_id, [])]
    answers: list[dict[str, Any]] = list(call.answers)
    if called and not any("tool_calls" in answer for answer in answers):
        answers[:1] = [assistant_message(answers[0]["content"] if answers else None, called)]
    if not call.messages and not answers:
        return
    endings = [[answer] for answer in answers] or [[]]
    for ending in endings:
        yield OpenAIMessages(messages=[*call.messages, *ending], tools=list(call.tools) or None)


def _tool_calls_by_parent(spans: Sequence[Span]) -> dict[str, list[dict[str, Any]]]:
    calls: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        if span.parent_id is None or "tool.name" not in span.attributes:
            continue
        tool = nested(span.attributes, "tool")
        call = tool.get("call")
        made = chat_tool_calls(
            [
                {
                    "id": call.get("id") if isinstance(call, dict) else None,
                    "function": {"name": tool.get("name"), "arguments": tool.get("parameters")},
                }
            ]
        )
        calls.setdefault(span.parent_id, []).extend(made)
    return calls
