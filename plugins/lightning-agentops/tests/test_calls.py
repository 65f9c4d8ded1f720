"""What is recorded of the calls of OpenAI's client, whose behaviour towards the agent stays as it was."""

import asyncio
from typing import Any

import openai
import pytest
from agentops_parts import CALL, CHAT, USER, Attempt, said
from lightning_agentops import AgentOpsTracer, library
from lightning_proxy.testing import FakeEngine
from opentelemetry import trace as otel


async def test_a_call_is_recorded_with_what_was_asked_and_answered(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt
) -> None:
    async with attempt.traced(tracer):
        await client.chat.completions.create(model="small", messages=USER, temperature=0.5)
    (span,) = await attempt.spans()
    assert (span.name, span.status.status_code, said(span)) == (CHAT, "OK", "ok")
    assert span.attributes["gen_ai.prompt.0.content"] == "hi"
    assert span.attributes["gen_ai.request.temperature"] == 0.5
    (call,) = await attempt.calls()
    assert call.messages == tuple(USER)
    assert (call.model, call.response_id, call.error) == ("small", "chatcmpl-1", None)


async def test_no_request_header_is_recorded(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt
) -> None:
    async with attempt.traced(tracer):
        await client.chat.completions.create(model="small", messages=USER, extra_headers={"X-Secret": "s3cret"})
        await client.embeddings.create(model="small", input="hi", extra_headers={"X-Secret": "s3cret"})
    spans = await attempt.spans()
    assert [span.name for span in spans] == [CHAT, "openai.embeddings"]
    for span in spans:
        assert "s3cret" not in span.model_dump_json()
        assert "sk-agent" not in span.model_dump_json()


async def test_the_agents_request_and_its_stream_stay_as_they_were(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, engine: FakeEngine, attempt: Attempt
) -> None:
    async with attempt.traced(tracer):
        chunks = [chunk async for chunk in await client.chat.completions.create(model="s", messages=USER, stream=True)]
    assert all(chunk.choices for chunk in chunks)
    assert "stream_options" not in engine.received[0].fields


async def test_a_message_that_is_the_clients_object_is_recorded(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, engine: FakeEngine, attempt: Attempt
) -> None:
    engine.replies = [{"tool_calls": [CALL]}, "2"]
    async with attempt.traced(tracer):
        first = await client.chat.completions.create(model="small", messages=USER)
        messages = [*USER, first.choices[0].message, {"role": "tool", "tool_call_id": "call-1", "content": "2"}]
        await client.chat.completions.create(model="small", messages=messages)
    one, two = await attempt.calls()
    assert one.answers[0]["tool_calls"] == [CALL]
    assert [message["role"] for message in two.messages] == ["user", "assistant", "tool"]
    assert two.messages[1]["tool_calls"] == [CALL]
    tools = [span for span in await attempt.spans() if span.name == "tool_call.add"]
    assert [(tool.parent_id, tool.attributes["agentops.span.kind"]) for tool in tools] == [(one.span_id, "tool")]


async def test_every_choice_is_recorded_with_its_own_text_and_tool_calls(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, engine: FakeEngine, attempt: Attempt
) -> None:
    engine.replies = ["one", "two", {"tool_calls": [CALL]}]
    async with attempt.traced(tracer):
        await client.chat.completions.create(model="small", messages=USER, n=3)
    (call,) = await attempt.calls()
    assert [message.get("content") for message in call.answers] == ["one", "two", None]
    assert call.answers[2]["tool_calls"] == [CALL]
    assert [choice.finish_reason for choice in call.choices] == ["stop", "stop", "tool_calls"]


async def test_what_the_agent_asks_for_by_other_ways_is_recorded(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt
) -> None:
    async with attempt.traced(tracer):
        await client.chat.completions.parse(model="small", messages=USER)
        raw = await client.chat.completions.with_raw_response.create(model="small", messages=USER)
        assert raw.parse().choices[0].message.content == "ok"
        async with client.chat.completions.stream(model="small", messages=USER) as stream:
            assert (await stream.get_final_completion()).choices[0].message.content == "ok"
        assert (await client.responses.create(model="small", input="hi")).output_text == "ok"
        events = [event.type async for event in await client.responses.create(model="s", input="hi", stream=True)]
        assert events[-1] == "response.completed"
    spans = await attempt.spans()
    assert [span.name for span in spans] == [CHAT] * 3 + ["openai.responses.create"] * 2
    assert [said(span) for span in spans[:3]] == ["ok"] * 3
    assert {span.status.status_code for span in spans} == {"OK"}
    assert len(await attempt.calls()) == 5


async def test_a_sync_client_in_a_thread_is_recorded_whole_and_streamed(
    tracer: AgentOpsTracer, engine: FakeEngine, attempt: Attempt
) -> None:
    def agent() -> None:
        with openai.OpenAI(base_url=engine.url, api_key="k") as client:
            client.chat.completions.create(model="small", messages=USER)
            with client.chat.completions.create(model="small", messages=USER, stream=True) as stream:
                assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "ok"
            client.responses.create(model="small", input="hi")
            client.chat.completions.parse(model="small", messages=USER)
            with client.chat.completions.stream(model="small", messages=USER) as helper:
                helper.until_done()

    async with attempt.traced(tracer):
        await asyncio.to_thread(agent)
    names = [span.name for span in await attempt.spans()]
    assert names == [CHAT, CHAT, "openai.responses.create", CHAT, CHAT]
    assert {span.parent_id for span in await attempt.spans()} == {None}


async def test_a_failed_call_is_recorded_and_the_agent_gets_its_error(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, engine: FakeEngine, attempt: Attempt
) -> None:
    engine.faults = [400, "dies_mid_stream"]
    async with attempt.traced(tracer):
        with pytest.raises(openai.BadRequestError, match="told to answer 400"):
            await client.chat.completions.create(model="small", messages=USER)
        with pytest.raises(Exception, match=r"peer closed connection|Connection error"):
            async for _ in await client.chat.completions.create(model="small", messages=USER, stream=True):
                pass
        tracer.create_span("after")
    refused, broken, after = await attempt.spans()
    assert (refused.status.status_code, broken.status.status_code) == ("ERROR", "ERROR")
    assert "told to answer 400" in (refused.status.description or "")
    assert after.parent_id is None


async def test_nothing_after_a_call_that_is_cancelled_is_a_part_of_it(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, engine: FakeEngine, attempt: Attempt
) -> None:
    engine.hold = asyncio.Event()
    async with attempt.traced(tracer):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.chat.completions.create(model="small", messages=USER)
        assert otel.get_current_span() is otel.INVALID_SPAN
        tracer.create_span("after")
    assert [(span.name, span.parent_id) for span in await attempt.spans()] == [("after", None)]


async def test_a_stream_can_be_closed_and_has_what_the_clients_own_has(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt
) -> None:
    async with attempt.traced(tracer):
        stream = await client.chat.completions.create(model="small", messages=USER, stream=True)
        assert stream.response.status_code == 200
        await stream.close()
        with pytest.raises(AttributeError, match="no_such"):
            _ = stream.no_such


async def test_what_cannot_be_read_of_a_call_costs_the_agent_nothing(
    tracer: AgentOpsTracer, client: openai.AsyncOpenAI, attempt: Attempt, caplog: pytest.LogCaptureFixture
) -> None:
    tools: Any = ["what no reader expects"]
    async with attempt.traced(tracer):
        answer = await client.chat.completions.create(model="small", messages=USER, tools=tools)
        once = await client.chat.completions.create(model="small", messages=iter(USER))
    assert answer.choices[0].message.content == once.choices[0].message.content == "ok"
    assert [span.status.status_code for span in await attempt.chats()] == ["OK", "OK"]
    assert "lightning.call_not_read" in caplog.text


@pytest.mark.usefixtures("tracer")
def test_an_answer_that_the_agent_reads_itself_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    read: list[object] = []

    class AsyncAPIResponse:
        """Has the parts of what `with_streaming_response` gives."""

        def parse(self) -> object:
            read.append(self)
            return self

    handle = library.part(library.STREAMS).handle_chat_attributes
    asked = {"model": "small", "messages": USER}
    assert handle(kwargs=asked, return_value=AsyncAPIResponse())["gen_ai.prompt.0.content"] == "hi"
    assert read == []
    assert caplog.records == []
