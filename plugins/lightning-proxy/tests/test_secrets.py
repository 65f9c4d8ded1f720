"""No key is recorded, and no agent is told the backend's; what is not to be recorded is not in errors, either."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from lightning_proxy import LLMProxy
from lightning_proxy.models import make_replicas
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, answering, status_of

from lightning_core.registry import default_registry
from lightning_core.types import AttemptedRollout, Span

KEY = "backend-secret-0123456789"
OTHER = "hdr-secret-0123456789"
DIARY = "my private diary"


async def refused(agent: Agent) -> tuple[str, Span]:
    """What an agent is told that is refused, and what is recorded of it."""
    async with agent.chat(DIARY) as response:
        assert response.status == 400
        return await response.text(), await agent.span()


@pytest.mark.parametrize("options", [{"capture_content": False}, {"redact": lambda what, value: "redacted"}])
async def test_what_a_backend_says_of_a_request_is_content(
    serve: Serve, engine: FakeEngine, options: dict[str, Any]
) -> None:
    agent = await serve(**options)
    answering(engine, {"error": {"message": f"wrong: {DIARY}", "code": "bad_request"}}, status=400)
    told, span = await refused(agent)
    assert DIARY in told
    assert DIARY not in span.model_dump_json()
    address = engine.url.split("/")[2]
    assert span.status.description == f"{address}: 400 (bad_request); what it said is not recorded"
    assert span.attributes["error.type"] == "400"


@pytest.mark.parametrize(
    ("path", "fields", "kind"),
    [
        ("/messages", {"messages": DIARY}, "invalid_request"),
        ("/messages", {"messages": [{"role": "user", "content": [{"type": DIARY}]}]}, "not_convertible"),
        ("/responses", {"input": [{"role": DIARY, "content": "x"}]}, "invalid_request"),
    ],
)
async def test_what_the_proxy_says_of_a_request_is_content(
    serve: Serve, path: str, fields: dict[str, Any], kind: str
) -> None:
    agent = await serve(params={"return_token_ids": True}, capture_content=False)
    async with agent.post(path, **fields) as response:
        assert response.status == 400
        assert DIARY in await response.text()
    span = await agent.span()
    assert DIARY not in span.model_dump_json()
    assert span.status.description == f"the proxy: {kind}; what it said is not recorded"


async def test_a_code_that_is_no_name_is_content(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(capture_content=False)
    answering(engine, {"error": {"message": "no", "code": DIARY}}, status=400)
    _, span = await refused(agent)
    assert DIARY not in span.model_dump_json()


async def test_garbage_is_content(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(capture_content=False)
    engine.faults = ["garbage"]
    async with agent.chat() as response:
        assert "it works" in await response.text()
    description = (await agent.span()).status.description or ""
    assert "it works" not in description
    assert "backend_garbage" in description


async def test_of_an_error_two_thousand_characters_are_recorded(agent: Agent, engine: FakeEngine) -> None:
    answering(engine, {"error": {"message": "x" * 1_000_000}}, status=400)
    told, span = await refused(agent)
    assert len(told) > 1_000_000
    assert span.status.description == "x" * 2_000


@pytest.mark.parametrize("path", ["/chat/completions", "/audio/speech"])
async def test_the_keys_of_a_backend_are_in_no_error(serve: Serve, engine: FakeEngine, path: str) -> None:
    agent = await serve(params={"api_key": KEY, "headers": {"x-extra": OTHER}}, allow_paths=["audio"])

    async def refuse(request: web.Request, *_: Any) -> web.Response:
        message = f"wrong: {request.headers['x-api-key']}, {request.headers['x-extra']}; the model is fine"
        return web.json_response({"error": {"message": message}}, status=401)

    engine._fail = refuse  # type: ignore[method-assign]
    assert engine._runner is not None
    next(route for route in engine._runner.app.router.routes() if route.method == "*")._handler = refuse
    async with agent.post(path, messages=[]) as response:
        assert response.status == 401
        assert (await response.json())["error"]["message"] == "wrong: ***, ***; the model is fine"
    for span in await agent.spans():
        assert span.status.description == "wrong: ***, ***; the model is fine"


async def test_the_keys_of_a_backend_are_not_recorded_of_a_stream_that_fails(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(params={"api_key": KEY})

    async def failing(*_: Any) -> Any:
        yield {"error": {"message": f"not with {KEY}"}}

    engine._chat_chunks = failing  # type: ignore[method-assign]
    assert await status_of(agent.chat(stream=True)) == 502
    assert (await agent.span()).status.description == "not with ***"


async def test_the_key_is_in_no_answer_with_an_error_beside_it(serve: Serve, engine: FakeEngine) -> None:
    agent = await serve(params={"api_key": KEY, "return_token_ids": True})
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    answering(engine, {"id": "c", "choices": [choice], "error": {"message": f"not with {KEY}"}})
    async with agent.chat() as answered:
        assert "not with ***" in await answered.text()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_key_is_in_no_answer_that_failed(serve: Serve, engine: FakeEngine, is_stream: bool) -> None:
    agent = await serve(params={"headers": {"Authorization": f"Bearer {KEY}"}})
    response = {"id": "r", "status": "failed", "output": [], "error": {"code": "server_error", "message": KEY}}
    event = json.dumps({"type": "response.failed", "response": response})

    async def fail(*_: Any) -> web.Response:
        if is_stream:
            return web.Response(text=f"event: response.failed\ndata: {event}\n\n", content_type="text/event-stream")
        return web.json_response(response)

    engine._fail = fail  # type: ignore[method-assign]
    async with agent.post("/responses", input="x", stream=is_stream) as answered:
        assert '"message": "***"' in await answered.text()
    assert (await agent.span()).status.description == "***"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"litellm_params": {"api_key": KEY}}, "***!"),
        ({"litellm_params": {"api_key": "os.environ/ENGINE_KEY"}}, "***!"),
        ({"litellm_params": {}, "backend": {"name": "openai", "api_key": KEY}}, "***!"),
        ({"litellm_params": {}}, "***!"),
        ({"litellm_params": {"api_base": "http://a:1/v1"}}, f"{KEY}!"),
        ({"litellm_params": {"api_key": "back"}}, f"{KEY}!"),
    ],
)
def test_the_keys_are_those_of_the_entry_wherever_they_are_kept(
    entry: Mapping[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (replica,) = make_replicas([{"model_name": "openai/m", **entry}], default_registry())
    assert replica.hide_keys(f"{KEY}!") == said


@pytest.mark.parametrize("redact", [None, lambda what, value: value])
async def test_the_key_of_an_attempt_is_not_recorded_with_what_is_said(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, redact: Any
) -> None:
    proxy: LLMProxy = await make_proxy(engine, key="secret", redact=redact, capture_tokens=False)
    key = proxy.attempt_key(attempt.rollout_id, attempt.attempt.attempt_id)
    engine.replies = [f"so it is\n{key}"]
    agent = Agent(http, proxy, attempt)
    tool = {"type": "function", "function": {"name": "call", "description": f"key={key}"}}
    async with agent.chat(f"env:\n{key}\n", tools=[tool], headers={"authorization": f"Bearer {key}"}) as response:
        assert key in (await response.json())["choices"][0]["message"]["content"]
    span = await agent.span()
    assert str(key) not in span.model_dump_json()
    assert r"env:\nagl-at-***\n" in span.attributes["gen_ai.input.messages"]
    assert r"so it is\nagl-at-***" in span.attributes["gen_ai.output.messages"]
    assert "key=agl-at-***" in span.attributes["gen_ai.tool.definitions"]
