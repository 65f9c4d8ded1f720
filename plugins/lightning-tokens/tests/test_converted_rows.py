"""The rows of a conversation are the same by whichever API the agent speaks, id by id."""

from dataclasses import replace
from typing import Any

import pytest
from four_apis import by_chat, by_gemini, by_messages, by_responses
from lightning_tokens import Generated
from token_engine import END, PAIR, Engine, StreamingEngine

from lightning_core.adapter import TraceToTrajectories
from lightning_core.types import Span

pytest.importorskip("anthropic")
pytest.importorskip("google.genai")

apis = pytest.mark.parametrize("talk", [by_messages, by_responses, by_gemini])
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
engines = pytest.mark.parametrize("engine_type", [Engine, StreamingEngine])

CALLS = '<tool_call>{"name": "add", "arguments": {"a": 1.0}}</tool_call>' * 2
TURNS = [{"say": "hi"}, {"say": "1 + 2?"}, {"results": ["3", "no"]}, {"say": "on"}, {"say": "and on"}]


def answers() -> list[list[int] | str]:
    """Texts that the tokenizer would cut in another way, two calls after a text, nothing, and what is cut off."""
    return [[PAIR, ord("c"), END], "so: " + CALLS, "three", [END], [ord("l"), PAIR]]


def tokens_of(spans: list[Span]) -> list[list[Any]]:
    names = ("prompt_token_ids", "response_token_ids", "response_logprobs", "agentlightning.has_token_ids")
    return [[span.attributes[name] for name in names] for span in spans]


@apis
@both_ways
@engines
async def test_a_conversation_with_tools_leaves_the_rows_of_the_same_one_by_chat(
    start: Any, talk: Any, stream: bool, engine_type: type[Engine]
) -> None:
    agent, chat = await start(engine_type(*answers())), await start(engine_type(*answers()))
    await talk(agent, TURNS, stream=stream, max_tokens=50)
    await by_chat(chat, TURNS, max_tokens=50)
    spans = await agent.spans()
    assert tokens_of(spans) == tokens_of(await chat.spans())
    assert [span.attributes["response_token_ids"] for span in spans][::4] == [[PAIR, ord("c"), END], [ord("l"), PAIR]]
    found = TraceToTrajectories().adapt(spans)
    assert (len(found.rows), found.refused) == (1, ()), "each prompt goes on with the tokens of the one before"


@both_ways
@engines
async def test_each_api_says_how_answers_ended(start: Any, stream: bool, engine_type: type[Engine]) -> None:
    """What else it says of an answer of chat, the tests of the proxy tell."""
    messages, responses, candidates = [
        await talk(await start(engine_type(*answers())), TURNS, stream=stream, max_tokens=50)
        for talk in (by_messages, by_responses, by_gemini)
    ]
    assert [each.stop_reason for each in messages] == ["end_turn", "tool_use", "end_turn", "end_turn", "max_tokens"]
    assert [each.status for each in responses] == ["completed"] * 4 + ["incomplete"]
    assert [each.candidates[0].finish_reason.value for each in candidates] == ["STOP"] * 4 + ["MAX_TOKENS"]
    for found in (responses[4].output_text, candidates[4].text, messages[4].content[0].text):
        assert found == "lab"
    assert [messages[place].usage.output_tokens for place in (0, 4)] == [3, 2]


class GivesUp(StreamingEngine):
    async def generate(self, *args: Any, **kwargs: Any) -> Generated:
        return replace(await super().generate(*args, **kwargs), finish_reason="abort")


@both_ways
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/responses", {"input": "hi"}),
        ("/models/small:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
    ],
)
async def test_a_call_that_the_engine_gives_up_is_to_be_made_again(
    start: Any, path: str, fields: dict[str, Any], stream: bool
) -> None:
    agent = await start(GivesUp("abc"))
    if "contents" not in fields:
        fields = {"model": "small", "stream": stream, **fields}
    elif stream:
        path = "/models/small:streamGenerateContent?alt=sse"
    async with agent.http.post(f"{agent.base}{path}", json=fields) as response:
        assert "the engine gave the call up" in await response.text()
        assert (response.status, response.headers.get("retry-after")) == ((200, None) if stream else (503, "1"))
    span = await agent.span()
    assert span.attributes["error.type"] == "call_aborted"
    assert not TraceToTrajectories().adapt([span]).rows
