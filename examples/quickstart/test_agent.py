import json

import pytest
from agent import MAX_TURNS, ask, call_tool, grade, read_answer
from local_endpoint import ChatRequest, ToolCall, serve


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Answer: 12.50", 12.5),
        ("I added it up.\n\n**Answer:** $1,012.50\n", 1012.5),
        ("answer: 3", 3.0),
        ("Answer: 12.50\nAnything else?", None),
        ("The answer is 12.50", None),
        ("Together that is 12.50.", None),
        ("", None),
    ],
)
def test_the_answer_is_read_from_the_last_line(reply: str, answer: float | None) -> None:
    assert read_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "reward", "remark"),
    [
        ("Answer: 12.50", 1.0, "The answer is right."),
        ("Answer: 12.40", 0.0, "The answer is 12.40; right is 12.50."),
        ("It is 12.50.", 0.0, "The last line of the reply is not of the form 'Answer: 12.50'."),
    ],
)
def test_only_the_right_total_in_the_right_form_is_rewarded(reply: str, reward: float, remark: str) -> None:
    assert grade(reply, "12.50") == (reward, remark)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("look_up_price", '{"product": "yacht"}', "no product named 'yacht'"),
        ("look_up_price", '{"item": "pen"}', "arguments must be"),
        ("look_up_price", "pen", "arguments must be"),
        ("buy", '{"product": "pen"}', "no tool named 'buy'"),
    ],
)
def test_a_wrong_tool_call_is_answered_with_what_is_wrong(name: str, arguments: str, error: str) -> None:
    assert error in json.loads(call_tool(name, arguments))["error"]


async def test_the_model_gets_what_the_tools_it_calls_return(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(request: ChatRequest) -> str | list[ToolCall]:
        return "|".join(request.tool_results) or [ToolCall("look_up_price", {"product": p}) for p in ("pen", "lamp")]

    async with serve(model) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        reply = await ask("What do a pen and a lamp cost?")
    assert reply == '{"product": "pen", "price": "1.40"}|{"product": "lamp", "price": "24.50"}'


async def test_a_model_that_never_stops_calling_tools_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[ChatRequest] = []

    def model(request: ChatRequest) -> list[ToolCall]:
        requests.append(request)
        return [ToolCall("look_up_price", {"product": "pen"})]

    async with serve(model) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        assert await ask("What does a pen cost?") == ""
    assert len(requests) == MAX_TURNS
