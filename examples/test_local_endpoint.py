import os
from typing import Any

import pytest
from local_endpoint import CannotAnswer, ChatRequest, LocalEndpoint, ToolCall, serve
from openai import APIConnectionError, AsyncOpenAI, BadRequestError

HELLO: Any = [{"role": "user", "content": "Hello"}]


def echo(request: ChatRequest) -> str:
    return f"{request.model}|{request.seed}|{request.prompt}"


def call_tool(request: ChatRequest) -> list[ToolCall]:
    return [ToolCall("look_up", {"name": "pen"})]


def refuse(request: ChatRequest) -> str:
    raise CannotAnswer("no question in the request")


async def test_the_openai_client_gets_the_text_of_the_function() -> None:
    async with serve(echo) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        completion = await client.chat.completions.create(
            model="some-model",
            seed=7,
            messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
        )
    assert completion.choices[0].message.content == "some-model|7|Be kind.\n\nHello"
    assert completion.choices[0].finish_reason == "stop"


async def test_the_openai_client_gets_the_tool_calls_of_the_function() -> None:
    async with serve(call_tool) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        completion = await client.chat.completions.create(model="m", messages=HELLO)
    [call] = completion.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("look_up", '{"name": "pen"}')
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_a_request_without_an_answer_is_refused_with_the_reason() -> None:
    async with serve(refuse) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        with pytest.raises(BadRequestError, match="no question in the request"):
            await client.chat.completions.create(model="m", messages=HELLO)


async def test_a_stream_gives_the_same_answer_and_its_usage() -> None:
    async with serve(echo) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "m|0|Hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("m|0|Hello")


async def test_a_stream_gives_tool_calls() -> None:
    async with serve(call_tool) as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        first, last = [chunk.choices[0] async for chunk in stream]
    [call] = first.delta.tool_calls or []
    assert call.function is not None
    assert (call.index, call.function.arguments) == (0, '{"name": "pen"}')
    assert last.finish_reason == "tool_calls"


async def test_an_answer_ends_before_a_stop_and_has_its_tokens_where_they_are_asked_for() -> None:
    async with serve(lambda request: "One. END Two.") as url, AsyncOpenAI(base_url=url, api_key="any") as client:
        completion = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hi"}],
            stop=["END", "."],
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
    answer = completion.model_dump()
    assert "".join(map(chr, answer["prompt_token_ids"])) == "user: Hi\nassistant: "
    assert "".join(map(chr, answer["choices"][0]["token_ids"])) == "One"
    assert [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]] == [0.0] * 3


async def test_clients_of_the_process_reach_the_endpoint_during_a_run_and_only_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://before.invalid/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint = LocalEndpoint(echo, notice="A stand-in answers.")

    await endpoint.lightning_run_start("run-1")
    url = os.environ["OPENAI_BASE_URL"]
    async with AsyncOpenAI(max_retries=0) as client:
        completion = await client.chat.completions.create(model="m", messages=HELLO)
    assert completion.choices[0].message.content == "m|0|Hello"
    assert capsys.readouterr().err == "A stand-in answers.\n"

    await endpoint.lightning_run_end("run-1", "succeeded")
    assert os.environ["OPENAI_BASE_URL"] == "http://before.invalid/v1"
    assert "OPENAI_API_KEY" not in os.environ
    async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        with pytest.raises(APIConnectionError):
            await client.chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize("yields", [True, False])
async def test_an_endpoint_leaves_a_key_alone_where_it_yields_and_else_puts_it_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], yields: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "real")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    endpoint = LocalEndpoint(echo, notice="A stand-in answers.", yield_to_key=yields)
    await endpoint.lightning_run_start("run-1")
    assert (os.environ["OPENAI_API_KEY"] == "real") is yields
    assert ("OPENAI_BASE_URL" not in os.environ) is yields
    assert (capsys.readouterr().err == "") is yields
    await endpoint.lightning_run_end("run-1", "failed")
    assert os.environ["OPENAI_API_KEY"] == "real"
