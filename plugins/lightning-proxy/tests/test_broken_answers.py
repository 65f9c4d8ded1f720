"""An answer that is none is an error: one that clients raise, and one of the call's record."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, answering, refused

PATHS = ["/chat/completions", "/completions", "/messages", "/responses"]
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "max_tokens": 9}

GOOD: dict[str, bytes] = {
    "/chat/completions": b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "Par"}}]}\n\n',
    "/completions": b'data: {"id": "c", "choices": [{"index": 0, "text": "Par"}]}\n\n',
    "/messages": b'event: message_start\ndata: {"type": "message_start", "message": {"id": "m", "model": "small", '
    b'"role": "assistant", "type": "message", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}\n\n',
    "/responses": b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0, '
    b'"response": {"id": "r", "model": "small", "output": []}}\n\n',
}
"""The first event of a stream."""

BROKEN = [
    b"data: <html>busy</html>\n\n",
    b'data: {"id": "c", "choi\n\ndata: ces": []}\n\n',
    b"data: [1, 2]\n\n",
    b'data: {"id": "c", "choi',
    b"",
]
"""What may come after it."""


def answer_with(engine: FakeEngine, *pieces: bytes | None, kind: str = "text/event-stream") -> None:
    """Let the next answers be these pieces; None cuts the connection."""

    async def answer(request: web.Request, *_: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for piece in pieces:
            if piece is None:
                assert request.transport is not None
                request.transport.close()
            elif piece:
                await response.write(piece)
        return response

    engine._fail = answer  # type: ignore[method-assign]


async def assert_broke(agent: Agent, error: str = "backend_broke") -> None:
    span = (await agent.spans())[-1]
    assert span.status.status_code == "ERROR"
    assert span.attributes["error.type"] == error


def last_event(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the fields of the last event; all events before it are whole."""
    events = [event for event in text.split("\n\n") if event]
    fields = [json.loads(event.partition("data: ")[2]) for event in events]
    return events[-1].partition("data: ")[0].strip(), fields[-1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asks_tokens", [False, True])
async def test_garbage_in_a_stream_is_an_error_in_the_form_of_the_api(
    agent: Agent, engine: FakeEngine, path: str, asks_tokens: bool
) -> None:
    first = GOOD[path]
    own = {"return_token_ids": True, "logprobs": 1, "stream_options": {"include_usage": True}} if asks_tokens else {}
    for broken in BROKEN:
        answer_with(engine, first[:30], first[30:] + broken[:9], broken[9:])
        async with agent.post(path, stream=True, **SAID, **own) as response:
            text = await response.text()
        name, fields = last_event(text)
        assert text.count("\n\n") == 2
        assert fields["error"]["message"]
        if path == "/messages":
            assert (name, fields["type"], fields["error"]["type"]) == ("event: error", "error", "api_error")
        await assert_broke(agent)


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
@pytest.mark.parametrize("choices", [None, "x", ["x"], 3])
async def test_choices_that_are_none_are_an_error(agent: Agent, engine: FakeEngine, path: str, choices: Any) -> None:
    answer_with(engine, GOOD[path], b"data: " + json.dumps({"id": "c", "choices": choices}).encode() + b"\n\n")
    async with agent.post(path, stream=True, **SAID) as response:
        _, fields = last_event(await response.text())
    assert "an event without choices" in fields["error"]["message"]
    await assert_broke(agent)


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_that_is_cut_is_an_error_after_whole_events(
    agent: Agent, engine: FakeEngine, path: str
) -> None:
    answer_with(engine, GOOD[path], GOOD[path][:-9], None)
    async with agent.post(path, stream=True, **SAID) as response:
        _, fields = last_event(await response.text())
    assert "broke off its answer" in fields["error"]["message"]
    await assert_broke(agent)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/chat/completions", b'event: error\ndata: {"message": "out of memory"}\n\n'),
        ("/chat/completions", b'data: {"object": "error", "message": "out of memory", "code": 400}\n\n'),
        ("/chat/completions", b'data: {"error": {"message": "out of memory"}}\n\n'),
        ("/messages", b'data: {"type": "error", "error": {"type": "api_error", "message": "out of memory"}}\n\n'),
        ("/messages", b'event: error\ndata: {"type": "error", "error": {"message": "out of memory"}}\n\n'),
        ("/responses", b'event: error\ndata: {"type": "error", "message": "out of memory", "code": "x"}\n\n'),
        ("/responses", b'event: error\ndata: {"type": "error", "error": {"message": "out of memory"}}\n\n'),
    ],
)
async def test_an_error_in_a_stream_has_the_form_that_clients_raise(
    agent: Agent, engine: FakeEngine, path: str, event: bytes
) -> None:
    answer_with(engine, GOOD[path], event)
    async with agent.post(path, stream=True, **SAID) as response:
        name, fields = last_event(await response.text())
    assert "out of memory" in fields["error"]["message"]
    assert name == ("event: error" if path == "/messages" else name)
    await assert_broke(agent, "backend_error")
    assert "out of memory" in ((await agent.span()).status.description or "")


@pytest.mark.parametrize(
    ("path", "event", "status", "kind"),
    [
        ("/chat/completions", {"error": {"message": "too long", "code": 400}}, 400, "invalid_request_error"),
        ("/chat/completions", {"object": "error", "message": "slower", "code": 429}, 429, "rate_limit_error"),
        ("/chat/completions", {"error": {"message": "boom", "code": "weird"}}, 502, "server_error"),
        (
            "/messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
            503,
            "overloaded_error",
        ),
    ],
)
async def test_an_error_that_begins_a_stream_has_the_status_that_it_names(
    agent: Agent, engine: FakeEngine, path: str, event: dict[str, Any], status: int, kind: str
) -> None:
    answer_with(engine, b"data: " + json.dumps(event).encode() + b"\n\n")
    async with agent.post(path, stream=True, **SAID) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (status, kind)


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_ends_without_an_answer_is_an_error(agent: Agent, engine: FakeEngine, path: str) -> None:
    last = b'data: {"choices": []}\n\ndata: [DONE]\n\n'
    if path == "/messages":
        last = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
    if path == "/responses":
        last = b'event: response.completed\ndata: {"type": "response.completed", "response": null}\n\n'
    answer_with(engine, last)
    async with agent.post(path, stream=True, **SAID) as response:
        text = await response.text()
    assert "without an answer" in text
    await assert_broke(agent)


@pytest.mark.parametrize("path", [*PATHS, "/embeddings"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_none_is_an_error(agent: Agent, engine: FakeEngine, path: str, stream: bool) -> None:
    for body in (b"", b"<html>busy</html>", b'{"choices": null, "output": null}', b"{}", b"null", b'{"choices": []}'):
        answer_with(engine, body, kind="application/json")
        async with agent.post(path, stream=stream, **SAID) as response:
            assert response.status == 502
            assert response.headers["x-should-retry"] == "false"
            assert "backend_garbage" in str((await response.json())["error"])
        await assert_broke(agent, "backend_garbage")


async def test_one_piece_in_the_place_of_a_stream_is_an_error(agent: Agent, engine: FakeEngine) -> None:
    whole = b'{"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]}'
    answer_with(engine, whole, kind="application/json")
    async with agent.post("/chat/completions", stream=True, **SAID) as response:
        assert response.status == 502
        assert "asked for a stream, and answered in one piece" in str(await response.json())
    await assert_broke(agent, "backend_garbage")


CHAT_ENDS = b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
ASKED: dict[str, Any] = {"/messages": {"messages": SAID["messages"], "max_tokens": 9}, "/responses": {"input": "hi"}}
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", ["/messages", "/responses"])
async def test_of_a_converted_stream_nothing_comes_after_its_end(serve: Serve, engine: FakeEngine, path: str) -> None:
    agent = await serve(params={"chat_only": True})
    answer_with(engine, GOOD["/chat/completions"] + CHAT_ENDS + DONE + b"data: junk\n\n", b"data: junk\n\n")
    async with agent.post(path, stream=True, **ASKED[path]) as response:
        text = await response.text()
    assert "junk" not in text
    assert last_event(text)[1]["type"] in ("message_stop", "response.completed")
    assert (await agent.span()).status.status_code == "OK"


@pytest.mark.parametrize("path", ["/messages", "/responses"])
async def test_a_converted_stream_without_a_finish_reason_is_an_error(
    serve: Serve, engine: FakeEngine, path: str
) -> None:
    agent = await serve(params={"chat_only": True})
    answer_with(engine, GOOD["/chat/completions"], DONE)
    async with agent.post(path, stream=True, **ASKED[path]) as response:
        text = await response.text()
    assert "Par" in text
    assert "without a finish reason" in last_event(text)[1]["error"]["message"]
    await assert_broke(agent)


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_the_engine_gave_up_is_an_error(
    serve: Serve, engine: FakeEngine, path: str, is_stream: bool
) -> None:
    agent = await serve(params={"chat_only": True})
    choice = {"index": 0, "finish_reason": "abort", "message": {"content": "Par"}, "delta": {}}
    answer = json.dumps({"id": "c", "choices": [choice]}).encode()
    if is_stream:
        answer_with(engine, GOOD["/chat/completions"], b"data: " + answer + b"\n\n", DONE)
    else:
        answer_with(engine, answer, kind="application/json")
    async with agent.post(path, stream=is_stream, **ASKED.get(path, {"messages": []})) as response:
        assert response.status == (200 if is_stream else 503)
        assert "the engine gave the call up before its answer was complete" in await response.text()
    await assert_broke(agent, "call_aborted")


class Endless(FakeEngine):
    """Answers until its client goes away."""

    status = 200
    piece = b"x" * 10_000
    content_type = "application/json"
    pause_seconds = 0.0

    async def _fail(self, request: web.Request, fields: object, fault: object) -> web.StreamResponse | None:
        response = web.StreamResponse(status=self.status, headers={"content-type": self.content_type})
        await response.prepare(request)
        while True:
            await response.write(self.piece)
            await asyncio.sleep(self.pause_seconds)


@pytest.fixture
async def endless() -> AsyncIterator[Endless]:
    async with Endless() as engine:
        yield engine


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_an_answer_over_the_limit_is_broken_off(serve: Serve, endless: Endless, status: int) -> None:
    endless.status = status
    agent = await serve(endless, params={"max_answer_bytes": 100_000})
    told = await refused(agent.chat(), 502, "backend_broke")
    assert "more than 100000 bytes; max_answer_bytes sets the limit" in told
    await asyncio.wait_for(endless.cancelled.wait(), 20)
    assert len(endless.received) == 1


async def test_a_stream_of_comments_is_one_that_does_not_go_on(serve: Serve, endless: Endless) -> None:
    endless.content_type, endless.piece, endless.pause_seconds = "text/event-stream", b": wait\n\n", 0.02
    agent = await serve(endless, params={"stream_timeout": 0.2})
    async with agent.chat(stream=True) as response:
        text = await response.text()
    assert "backend_timeout" in text
    assert "did not go on with its answer within 0.2 s" in text


INVALID = [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]


@pytest.mark.parametrize(
    ("status", "kind", "body", "words"),
    [
        (500, "text/plain", "CUDA out of memory\n", "CUDA out of memory"),
        (422, "application/json", json.dumps({"detail": "too many images"}), "too many images"),
        (422, "application/json", json.dumps({"detail": INVALID}), json.dumps(INVALID, separators=(",", ":"))),
        (400, "application/json", json.dumps({"object": "error", "message": "too long"}), "too long"),
        (503, "text/html", "<h1>bad gateway</h1>", "<h1>bad gateway</h1>"),
        (403, "application/json", json.dumps("forbidden"), '"forbidden"'),
    ],
)
async def test_an_error_without_the_apis_form_keeps_its_words(
    serve: Serve, engine: FakeEngine, status: int, kind: str, body: str, words: str
) -> None:
    agent = await serve(num_retries=0)
    answering(engine, body, status=status, kind=kind, **{"x-request-id": "req-1"})
    async with agent.chat() as response:
        answered = await response.json()
    assert (response.status, response.headers["x-request-id"]) == (status, "req-1")
    assert answered["error"]["message"] == words
    async with agent.post("/messages", messages=[], max_tokens=1) as response:
        in_anthropics = await response.json()
    assert (response.status, in_anthropics["type"]) == (status, "error")
    assert in_anthropics["error"]["message"].startswith(words)
    for span in await agent.spans():
        assert span.status.description == words
        assert span.attributes["error.type"] == str(status)


async def test_an_error_without_words_says_where_it_comes_from(agent: Agent, engine: FakeEngine) -> None:
    answering(engine, "", status=500, kind="text/plain")
    async with agent.chat() as response:
        assert "127.0.0.1" in (await response.json())["error"]["message"]
    assert "answered 500 without a word" in str((await agent.span()).status.description)
