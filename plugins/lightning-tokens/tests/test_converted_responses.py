"""OpenAI's responses in front of an engine that speaks chat: stored items, errors, and the Agents SDK."""

from typing import Any

import agents
import aiohttp
import openai
import pytest
from lightning_proxy.apis.responses import StoredResponses
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy
from token_engine import StreamingEngine

from lightning_core.adapter import TraceToTrajectories
from lightning_core.types import AttemptedRollout

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
HI = {"role": "user", "content": "hi"}


@pytest.fixture
async def converted(
    make_proxy: MakeProxy, engine: FakeEngine, http: aiohttp.ClientSession, attempt: AttemptedRollout
) -> Agent:
    return Agent(http, await make_proxy(engine, params={"return_token_ids": True}), attempt)


async def answered(agent: Agent, stream: bool, **fields: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        if not stream:
            return await client.responses.create(model="small", **fields)
        async with client.responses.stream(model="small", **fields) as streamed:
            return await streamed.get_final_response()


@both_ways
async def test_an_item_may_be_named_by_its_id(converted: Agent, engine: FakeEngine, stream: bool) -> None:
    engine.replies = ["first", "second"]
    first = await answered(converted, stream, input=[HI])
    reference = {"type": "item_reference", "id": first.output[0].id}
    second = await answered(converted, stream, input=[HI, reference, HI])
    assert second.output_text == "second"
    turns = [(each["role"], each["content"]) for each in engine.received[1].fields["messages"]]
    assert turns == [("user", "hi"), ("assistant", "first"), ("user", "hi")]
    assert '"first"' in str((await converted.spans())[1].attributes["gen_ai.input.messages"])


@both_ways
async def test_a_call_is_recorded_by_the_id_that_its_client_sees(converted: Agent, stream: bool) -> None:
    # What instruments the client records this id, too: so the call counts once.
    response = await answered(converted, stream, input=[HI])
    assert (await converted.span()).attributes["gen_ai.response.id"] == response.id


@both_ways
async def test_a_response_goes_on_from_one_before_it(converted: Agent, engine: FakeEngine, stream: bool) -> None:
    engine.replies = ["first", "second", "third"]
    first = await answered(converted, stream, input="hi", instructions="be good")
    second = await answered(converted, stream, input="on", previous_response_id=first.id)
    third = await answered(converted, stream, input=[HI], previous_response_id=second.id, instructions="be bad")
    assert third.output_text == "third"
    turns = [(each["role"], each["content"]) for each in engine.received[2].fields["messages"]]
    said = [("user", "hi"), ("assistant", "first"), ("user", "on"), ("assistant", "second"), ("user", "hi")]
    assert turns == [("system", "be bad"), *said]


async def test_what_is_of_others_or_was_not_to_be_stored_is_neither_known_nor_gone_on_from(converted: Agent) -> None:
    theirs = await answered(await converted.another(), False, input=[HI])
    unstored = await answered(converted, False, input=[HI], store=False)
    for response in (theirs, unstored):
        with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
            await answered(converted, False, input=[HI], previous_response_id=response.id)
        reference = {"type": "item_reference", "id": response.output[0].id}
        with pytest.raises(openai.BadRequestError, match=r"input\[1\] names an item that is not stored here"):
            await answered(converted, False, input=[HI, reference])


def test_the_oldest_responses_are_forgotten() -> None:
    responses = StoredResponses(max_bytes=250)
    for number in range(3):
        item = {"id": f"msg_{number}", "text": "x"}
        responses.keep("at-1", {"input": "hi"}, {"id": f"resp_{number}", "output": [item]}, 100)
    asked = {"input": [{"type": "item_reference", "id": f"msg_{number}"} for number in range(3)]}
    assert ["text" in item for item in responses.resolve("at-1", asked)["input"]] == [False, True, True]
    continued = [responses.resolve("at-1", {"previous_response_id": f"resp_{number}"}) for number in range(3)]
    assert [len(each.get("input", ())) for each in continued] == [0, 2, 2]


@both_ways
async def test_a_tool_that_the_provider_runs_is_left_out(converted: Agent, engine: FakeEngine, stream: bool) -> None:
    tools = [{"type": "web_search", "external_web_access": True}, {"type": "function", "name": "f", "parameters": {}}]
    async with converted.post("/responses", input="hi", stream=stream, tools=tools) as response:
        assert response.status == 200
        await response.read()
    assert [tool["function"]["name"] for tool in engine.received[0].fields["tools"]] == ["f"]
    assert (await converted.span()).attributes["agentlightning.dropped_tools"] == ["web_search"]


async def test_an_agent_of_the_agents_sdk_leaves_one_row(start: Any) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    agent = await start(StreamingEngine("let me see " + call, "3", "yes"))

    @agents.function_tool
    def add(a: int, b: int) -> int:
        return a + b

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=agent.base, api_key="none", max_retries=0) as client:
        model = agents.OpenAIResponsesModel("small", client)
        adder: Any = agents.Agent(name="adder", instructions="be good", model=model, tools=[add])
        first = await agents.Runner.run(adder, "1 + 2?")
        second = agents.Runner.run_streamed(adder, [*first.to_input_list(), {"role": "user", "content": "sure?"}])
        async for _ in second.stream_events():
            pass
    assert (first.final_output, second.final_output) == ("3", "yes")
    found = TraceToTrajectories().adapt(await agent.spans())
    assert (len(found.rows), found.refused) == (1, ())
