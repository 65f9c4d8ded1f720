"""Tool calls in a model's text."""

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

ToolParser = Callable[[str], tuple[str, list[dict[str, Any]]]]
"""Takes an answer's text; returns what is left of it, and the tool calls as OpenAI's chat API has them."""

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def parse_hermes(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Read tool calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    What is not well formed stays in the text: the agent sees what the model said.
    """
    calls: list[dict[str, Any]] = []

    def take(match: "re.Match[str]") -> str:
        try:
            given = json.loads(match[1])
        except ValueError:
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
    return (left.strip() if calls else text), calls
