"""An agent that says what an order costs. It asks a model, which may look up prices with a tool.

The model is the one that `OPENAI_BASE_URL` and `OPENAI_API_KEY` lead to, under the name in `AGL_QUICKSTART_MODEL`.
"""

import json
import os
import re
import ssl
from typing import TypedDict, cast

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from price_list import PRICES, in_dollars

from lightning_core import PromptTemplate, emit_message, rollout

MODEL = os.environ.get("AGL_QUICKSTART_MODEL", "gpt-4.1-mini")
MAX_TURNS = 8
ANSWER = re.compile(r"\W*answer\W+(\d[\d,]*(?:\.\d\d?)?)\W*", re.IGNORECASE)

# Loading the certificates takes 20 ms; a client is made for every task, this but once.
TLS = ssl.create_default_context()

PRICE_TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "look_up_price",
        "description": "Look up the price of one piece of a product.",
        "parameters": {
            "type": "object",
            "properties": {"product": {"type": "string", "description": "The product's name, in the singular."}},
            "required": ["product"],
        },
    },
}


class Order(TypedDict):
    """One sample of the dataset."""

    question: str
    total: str
    """In dollars, with two decimals."""


@rollout
async def solve(task: Order, prompt_template: PromptTemplate) -> float:
    """Answer one question; the messages are for the optimiser of the prompt.

    Returns:
        The reward, see `grade`.
    """
    reply = await ask(prompt_template.format(question=task["question"]))
    reward, remark = grade(reply, task["total"])
    emit_message(f"Reply: {reply}")
    emit_message(remark)
    return reward


async def ask(prompt: str) -> str:
    """Return the model's last word, after all the tool calls that it asks for; empty after `MAX_TURNS` of them."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": prompt}]
    async with AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=MODEL, messages=messages, tools=[PRICE_TOOL], temperature=0
            )
            message = completion.choices[0].message
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            if not calls:
                return message.content or ""
            said = message.model_dump(include={"role", "content", "tool_calls"})
            messages.append(cast(ChatCompletionMessageParam, said))
            for call in calls:
                result = call_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def call_tool(name: str, arguments: str) -> str:
    """Return the result of a tool call as JSON. What a model got wrong is a result too, so that it can try again."""
    try:
        product = str(json.loads(arguments)["product"])
    except (ValueError, KeyError, TypeError):
        return json.dumps({"error": f'arguments must be {{"product": NAME}}; got {arguments}'})
    if name != "look_up_price":
        return json.dumps({"error": f"no tool named {name!r}; there is look_up_price"})
    if product not in PRICES:
        return json.dumps({"error": f"no product named {product!r}; the shop has {', '.join(PRICES)}"})
    return json.dumps({"product": product, "price": in_dollars(PRICES[product])})


def grade(reply: str, total: str) -> tuple[float, str]:
    """Return the reward and what was wrong: 1.0 when the last line is `Answer:` and the right total, else 0.0."""
    answer = read_answer(reply)
    if answer is None:
        return 0.0, "The last line of the reply is not of the form 'Answer: 12.50'."
    if answer != float(total):
        return 0.0, f"The answer is {answer:.2f}; right is {total}."
    return 1.0, "The answer is right."


def read_answer(reply: str) -> float | None:
    """Return the amount of the last line if that is of the form `Answer: 12.50`, else None."""
    lines = reply.strip().splitlines()
    match = ANSWER.fullmatch(lines[-1]) if lines else None
    return float(match[1].replace(",", "")) if match else None
