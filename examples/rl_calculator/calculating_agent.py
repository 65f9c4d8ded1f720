"""The agent: a model that may use a calculator. It is written for the chat API of OpenAI, and knows of no training."""

import json
import re
import ssl
from typing import cast

from calculator import evaluate
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from word_problems import Problem

from lightning_core import LLM, rollout

MAX_TURNS = 3
MAX_TOKENS = 40
"""Of an answer; a tool call takes about 20."""

ANSWER = re.compile(r"Answer: (-?\d+(?:\.\d+)?)")

# Loading the certificates takes 20 ms; a client is made for every task, this but once.
TLS = ssl.create_default_context()

CALCULATOR: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Work out one operation with two numbers, such as 12 / 4.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@rollout
async def solve(task: Problem, llm: LLM) -> float:
    """Answer a question; the reward is 1 when the answer is right, and a tool was used to find it, else 0."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(
        base_url=llm.get_base_url(),
        api_key=llm.api_key or "none",
        http_client=DefaultAsyncHttpxClient(verify=TLS),
    ) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=[CALCULATOR], max_tokens=MAX_TOKENS
            )
            message = completion.choices[0].message
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            if not calls:
                has_calculated = len(messages) > 1
                return float(has_calculated and read_answer(message.content) == task["answer"])
            said = message.model_dump(include={"role", "content", "tool_calls"})
            messages.append(cast(ChatCompletionMessageParam, said))
            for call in calls:
                result = call_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


def call_tool(name: str, arguments: str) -> str:
    """Return what a tool call gives. What a model got wrong is a result too, so that it can try again."""
    try:
        return evaluate(read_expression(name, arguments))
    except ValueError as exc:
        return f"error: {exc}"


def read_expression(name: str, arguments: str) -> str:
    """Return the expression of a tool call.

    Args:
        name: The tool that it calls.
        arguments: As JSON.

    Raises:
        ValueError: When it is not a call of the calculator; says what it has to be.
    """
    if name != "calculate":
        raise ValueError(f"there is no tool {name!r}; there is calculate")
    try:
        given = json.loads(arguments)
    except ValueError as exc:
        raise ValueError(f"arguments are not JSON: {exc}") from exc
    if not isinstance(given, dict) or list(given) != ["expression"] or not isinstance(given["expression"], str):
        raise ValueError(f'arguments are like {{"expression": "12 / 4"}}; got {arguments}')
    return given["expression"]


def read_answer(reply: str | None) -> str | None:
    """Return the number in a reply that is `Answer: NUMBER` and nothing else, else None."""
    match = ANSWER.fullmatch((reply or "").strip())
    return match[1] if match else None
