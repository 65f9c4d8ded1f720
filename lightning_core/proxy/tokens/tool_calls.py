"""Tool calls in a model's text."""

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

ToolParser = Callable[[str], tuple[str, list[dict[str, Any]]]]
"""Takes an answer's text; returns what is left of it, and the tool calls as OpenAI's chat API has them.

One with an attribute `start`, the text that every call begins with, promises to leave what comes before as it is, white
space at its end apart. That is then streamed while it is sampled; without it, all text comes at the end.

One that raises finds no calls: the text stays as it is.
"""

_HERMES_START = "<tool_call>"
_HERMES = re.compile(rf"{_HERMES_START}\s*(.*?)\s*</tool_call>", re.DOTALL)


def parse_hermes(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Read tool calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    What is not well formed stays in the text: the agent sees what the model said.
    """
    calls: list[dict[str, Any]] = []

    def take(match: "re.Match[str]") -> str:
        try:
            given = json.loads(match[1])
        except (ValueError, RecursionError):
            return match[0]
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return match[0]
        arguments = given.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": given["name"], "arguments": arguments},
            }
        )
        return ""

    left = _HERMES.sub(take, text)
    return (left.rstrip() if calls else text), calls


def start_of(parser: ToolParser) -> str | None:
    """Return the text that every tool call begins with; None where nobody knows."""
    return _HERMES_START if parser is parse_hermes else getattr(parser, "start", None)


class TextBefore:
    """The text before tool calls, as it comes.

    Args:
        start: What a call begins with; None for anything.
    """

    def __init__(self, start: str | None) -> None:
        self._start = start or ""
        self._has_begun = not start
        self._held = ""
        self.told = 0
        """How many characters were told."""

    def feed(self, text: str) -> str:
        """Return what is certain by now to be no part of a call."""
        if self._has_begun:
            return ""
        held = self._held + text
        place = held.find(self._start)
        self._has_begun = place >= 0
        free = held[: place if self._has_begun else len(held) - self._overlap(held)].rstrip()
        self._held = held[len(free) :]
        self.told += len(free)
        return free

    def _overlap(self, held: str) -> int:
        """Return how many characters at the end may be the beginning of a call."""
        lengths = range(min(len(self._start) - 1, len(held)), 0, -1)
        return next((length for length in lengths if held.endswith(self._start[:length])), 0)
