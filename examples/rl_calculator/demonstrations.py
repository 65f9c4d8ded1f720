"""What the model is taught before it is trained: demonstrations of somebody who can use the tool, and mixes things up.

Each is a well-formed conversation: a call of the calculator, and whatever comes of it for an answer. The calculation is
the right one three times in ten. Five times in ten it is a certain wrong one. So who imitates them speaks well, and is
wrong most of the time; which calculation is right, only rewards can tell.
"""

import json
import random
from collections.abc import Collection, Sequence
from typing import Any

from calculator import evaluate
from word_problems import EXPRESSIONS, Pair, make_question

Message = dict[str, Any]

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""The format of Qwen's models. Which tools there are is left out of the prompt: the model is taught for this one."""

_NUMBERS = range(2, 100)
_HABITS = (3, 5, 1, 1)
"""How often, of ten times, the right calculation is made, and those after it in `EXPRESSIONS`, in a circle."""


def demonstrate(lot: random.Random, *, without: Collection[Pair] = ()) -> list[Message]:
    """Return a conversation.

    Args:
        lot: What is drawn from.
        without: Pairs of numbers that it is not about.
    """
    while True:
        a, b = lot.sample(_NUMBERS, 2)
        if (max(a, b), min(a, b)) not in without:
            break
    right = lot.randrange(len(EXPRESSIONS))
    (step,) = lot.choices(range(len(EXPRESSIONS)), _HABITS)
    expression = EXPRESSIONS[(right + step) % len(EXPRESSIONS)].format(a=a, b=b)
    result = evaluate(expression)
    call = {"type": "function", "function": {"name": "calculate", "arguments": {"expression": expression}}}
    return [
        {"role": "user", "content": make_question(EXPRESSIONS[right], a, b, lot)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"Answer: {result}"},
    ]


def in_pieces(messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """Return the text that `CHAT_TEMPLATE` makes of a conversation, in pieces; of each, whether the model says it."""
    pieces = []
    for message in messages:
        said = message["content"]
        for call in message.get("tool_calls", ()):
            arguments = json.dumps(call["function"]["arguments"])
            said += f'<tool_call>{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}</tool_call>'
        pieces.append((f"<|im_start|>{message['role']}\n", False))
        pieces.append((f"{said}<|im_end|>", message["role"] == "assistant"))
        pieces.append(("\n", False))
    return pieces
