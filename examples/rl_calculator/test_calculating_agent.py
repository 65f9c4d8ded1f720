import json

import pytest
from calculating_agent import MAX_TURNS, call_tool, read_answer, solve
from calculator import evaluate
from local_endpoint import ChatRequest, ToolCall, serve
from word_problems import Problem

from lightning_core import LLM

PROBLEM = Problem(question="Ada has 14 apples and finds 7 more. How many apples is that?", expression="", answer="21")


@pytest.mark.parametrize(
    ("expression", "result"),
    [("14 + 7", "21"), ("7-14", "-7"), ("14 * 7", "98"), ("7 / 14", "0.5"), ("2 / 81", "0.02"), ("-1 / 999", "0")],
)
def test_the_calculator_rounds_to_two_decimals(expression: str, result: str) -> None:
    assert evaluate(expression) == result


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", '{"expression": "14 + 7"}', "21"),
        ("calculate", '{"expression": "14 + "}', "error: an expression is like 12 / 4; got 14 + "),
        ("calculate", '{"expression": "1 / 0"}', "error: 1 / 0 divides by zero"),
        ("calculate", '{"expression": 3}', "error: arguments are like"),
        ("calculate", '{"formula": "1 + 1"}', "error: arguments are like"),
        ("calculate", "[]", "error: arguments are like"),
        ("calculate", "14 + 7", "error: arguments are not JSON"),
        ("search", "{}", "error: there is no tool 'search'; there is calculate"),
    ],
)
def test_a_tool_call_gives_its_result_or_what_is_wrong(name: str, arguments: str, result: str) -> None:
    assert call_tool(name, arguments).startswith(result)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [("Answer: 21", "21"), (" Answer: -0.5\n", "-0.5"), ("Answer: 21 apples", None), ("21", None), ("", None)],
)
def test_an_answer_is_the_number_and_nothing_else(reply: str, answer: str | None) -> None:
    assert read_answer(reply) == answer


@pytest.mark.parametrize(
    ("expression", "answer", "reward"), [("14 + 7", "Answer: 21", 1.0), ("14 - 7", "Answer: 7", 0.0)]
)
async def test_the_right_answer_is_rewarded(expression: str, answer: str, reward: float) -> None:
    requests: list[ChatRequest] = []

    def model(request: ChatRequest) -> str | list[ToolCall]:
        requests.append(request)
        return answer if request.tool_results else [ToolCall("calculate", {"expression": expression})]

    async with serve(model) as url:
        assert await solve(PROBLEM, LLM(endpoint=url, model="tiny")) == reward
    assert [request.tool_results for request in requests] == [[], [evaluate(expression)]]
    assert requests[0].prompt == PROBLEM["question"]


async def test_a_guess_without_the_tool_earns_nothing() -> None:
    async with serve(lambda request: "Answer: 21") as url:
        assert await solve(PROBLEM, LLM(endpoint=url, model="tiny")) == 0.0


async def test_a_model_that_never_answers_earns_nothing() -> None:
    requests: list[ChatRequest] = []

    def model(request: ChatRequest) -> list[ToolCall]:
        requests.append(request)
        return [ToolCall("calculate", json.loads('{"expression": "14 + 7"}'))]

    async with serve(model) as url:
        assert await solve(PROBLEM, LLM(endpoint=url, model="tiny")) == 0.0
    assert len(requests) == MAX_TURNS
