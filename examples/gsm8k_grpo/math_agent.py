"""The agent: answers a question of GSM8K with a model that may use a calculator. It knows of no training."""

import ast
import json
import operator
import re
import ssl
from decimal import Decimal, InvalidOperation
from typing import TypedDict, cast

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from lightning_core import LLM, rollout

MAX_TURNS = 6
MAX_TOKENS = 512

PROMPT = (
    "{question}\n\nThink step by step, and let the calculator do the arithmetic. "
    "End with a line that has the number alone, as in:\n#### 42"
)

# Loading the certificates takes 20 ms; a client is made for every task, this but once.
TLS = ssl.create_default_context()

CALCULATOR: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Work out an arithmetic expression, such as (16 - 3 - 4) * 2.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "With + - * / and parentheses."}},
            "required": ["expression"],
        },
    },
}

ANSWER = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MAX_CHARACTERS = 200


class Sample(TypedDict):
    """A row of GSM8K."""

    question: str
    answer: str
    """A solution in words; the number is behind the `####` at its end."""


@rollout
async def solve(task: Sample, llm: LLM) -> float:
    """Answer a question.

    Returns:
        The reward: 1 when the number in the model's last answer is the right one, else 0.

    Raises:
        ValueError: When the sample has no number to compare with.
    """
    right = read_number(task["answer"])
    if right is None:
        raise ValueError(f"the answer of a sample ends with #### and a number; got ...{task['answer'][-40:]!r}")
    return float(read_number(await ask(task["question"], llm)) == right)


async def ask(question: str, llm: LLM) -> str:
    """Return the model's last word, after all the tool calls that it asks for; empty after `MAX_TURNS` of them."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT.format(question=question)}]
    async with AsyncOpenAI(
        base_url=llm.get_base_url(),
        api_key=llm.api_key or "none",
        http_client=DefaultAsyncHttpxClient(verify=TLS),
    ) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=llm.model,
                messages=messages,
                tools=[CALCULATOR],
                max_tokens=MAX_TOKENS,
                **llm.sampling_parameters,
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
    """Return the result of a tool call. What a model got wrong is a result too, so that it can try again."""
    if name != "calculate":
        return f"error: there is no tool {name!r}; there is calculate"
    try:
        expression = json.loads(arguments)["expression"]
    except (ValueError, KeyError, TypeError):
        return f'error: arguments are like {{"expression": "(16 - 3) * 2"}}; got {arguments}'
    try:
        return f"{evaluate(str(expression)):.10g}"
    except (ValueError, ZeroDivisionError, OverflowError) as exc:
        return f"error: {exc}"


def evaluate(expression: str) -> float:
    """Return what an expression of numbers, `+ - * /` and parentheses comes to.

    Raises:
        ValueError: When it is something else, or too long.
        ZeroDivisionError: When it divides by zero.
        OverflowError: When it comes to too much.
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {_MAX_CHARACTERS} characters; got {len(expression)}")
    try:
        tree = ast.parse(expression.replace(",", "").strip(), mode="eval")
    except SyntaxError as exc:
        raise ValueError(f"an expression is like (16 - 3) * 2; got {expression}") from exc
    return _value(tree.body, expression)


def _value(node: ast.expr, expression: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, expression)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result: float = _OPERATORS[type(op)](_value(left, expression), _value(right, expression))
            return result
    raise ValueError(f"an expression has numbers, + - * / and parentheses; got {expression}")


def read_number(text: str) -> Decimal | None:
    """Return the number behind the last `####`, so that 1,200 and 1200.00 are the same; None where there is none."""
    found = ANSWER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None
