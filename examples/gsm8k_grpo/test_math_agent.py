import json
import os
from decimal import Decimal
from pathlib import Path

import pytest
from local_endpoint import ChatRequest, ToolCall, serve
from math_agent import MAX_TURNS, call_tool, evaluate, read_number, solve

from lightning_core import LLM
from lightning_core.config.datasets import load_dataset
from lightning_core.types import samples_of

SAMPLE = {"question": "Ann sells 3 bags of 7 eggs for $2 an egg. What does she earn?", "answer": "21 eggs.\n#### 42"}

needs_data = pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so\n#### 42", "42"),
        ("#### 1,200", "1200"),
        ("#### $1200.00", "1200"),
        ("####-3.5", "-3.5"),
        ("#### .5", "0.5"),
        ("#### 1\nno:\n#### 2", "2"),
        ("The answer is 42.", None),
        ("#### forty", None),
        ("", None),
    ],
)
def test_the_number_behind_the_last_mark_is_the_answer(text: str, number: str | None) -> None:
    assert read_number(text) == (None if number is None else Decimal(number))


@needs_data
def test_every_public_solution_has_a_number_and_earns_the_reward() -> None:
    rows = samples_of(load_dataset("test_300.jsonl", Path(os.environ["AGL_TEST_DATA"]) / "gsm8k"))
    numbers = [read_number(row["answer"]) for row in rows]
    assert len(numbers) == 300
    assert None not in numbers
    # What the solutions have worked out on the way is what the calculator says, too.
    steps = [step for row in rows for step in row["answer"].split("<<")[1:]]
    agree = [_agrees(*step.split(">>")[0].split("=", 1)) for step in steps if step.count("=") == 1]
    assert sum(agree) / len(agree) > 0.98


def _agrees(expression: str, result: str) -> bool:
    try:
        return evaluate(expression) == pytest.approx(float(result), abs=0.01)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("expression", "value"), [("(16 - 3 - 4) * 2", 18.0), ("80,000 + 50,000", 130000.0), ("-3 / 4", -0.75)]
)
def test_the_calculator_works_out_an_expression(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", {"expression": "2 * (3 + 4)"}, "14"),
        ("calculate", {"expression": "1 / 3"}, "0.3333333333"),
        ("calculate", {"expression": "1 / 0"}, "error: float division by zero"),
        ("calculate", {"expression": "9 ** 9"}, "error: an expression has numbers, + - * / and parentheses; got 9 **"),
        ("calculate", {"expression": "open('x')"}, "error: an expression has numbers"),
        ("calculate", {"expression": "2 +"}, "error: an expression is like (16 - 3) * 2; got 2 +"),
        ("calculate", {"expression": "1+" * 200}, "error: an expression has at most 200 characters; got 400"),
        ("calculate", {"formula": "1"}, "error: arguments are like"),
        ("search", {}, "error: there is no tool 'search'; there is calculate"),
    ],
)
def test_a_tool_call_gives_its_result_or_what_is_wrong(name: str, arguments: dict[str, str], result: str) -> None:
    assert call_tool(name, json.dumps(arguments)).startswith(result)


@pytest.mark.parametrize(("last", "reward"), [("21 * 2 = 42\n#### 42", 1.0), ("#### 41", 0.0), ("It is 42.", 0.0)])
async def test_the_agent_calculates_and_its_last_number_is_rewarded(last: str, reward: float) -> None:
    requests: list[ChatRequest] = []

    def model(request: ChatRequest) -> str | list[ToolCall]:
        requests.append(request)
        return last if request.tool_results else [ToolCall("calculate", {"expression": "3 * 7"})]

    async with serve(model) as url:
        assert await solve(SAMPLE, LLM(endpoint=url, model="small")) == reward
    assert [request.tool_results for request in requests] == [[], ["21"]]
    assert SAMPLE["question"] in requests[0].prompt


async def test_a_model_that_never_stops_calculating_earns_nothing() -> None:
    requests: list[ChatRequest] = []

    def model(request: ChatRequest) -> list[ToolCall]:
        requests.append(request)
        return [ToolCall("calculate", {"expression": "1 + 1"})]

    async with serve(model) as url:
        assert await solve(SAMPLE, LLM(endpoint=url, model="small")) == 0.0
    assert len(requests) == MAX_TURNS


async def test_a_sample_without_a_number_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="ends with #### and a number"):
        await solve({"question": "?", "answer": "42"}, LLM(endpoint="http://127.0.0.1:1/v1", model="small"))
