"""An agent reaches what the proxy records and charges, and what belongs to its own attempt; an option opens more."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, model, refusal, refused, status_of
from yarl import URL

from lightning_core.errors import ConfigError
from lightning_core.types import AttemptedRollout

CLOSED = [
    ("POST", "/messages/batches"),
    ("GET", "/chat/completions"),
    ("DELETE", "/chat/completions/chatcmpl-1"),
    ("GET", "/messages"),
    ("POST", "/responses/compact"),
    ("GET", "/responses"),
    ("GET", "/responses/resp_1"),
    ("DELETE", "/responses/resp_1"),
    ("POST", "/audio/speech"),
    ("POST", "/conversations"),
    ("POST", "/load_lora_adapter"),
    ("POST", "//Files"),
    ("POST", "/%66iles"),
    ("DELETE", "/models/ft:gpt"),
    ("POST", "/models"),
    ("PATCH", "/anything"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
@pytest.mark.parametrize("key", ["", "secret"])
async def test_a_path_that_is_not_known_is_refused_and_the_answer_names_the_option(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, method: str, path: str, key: str
) -> None:
    proxy = await make_proxy(engine, key=key)
    ids = attempt.rollout_id, attempt.attempt.attempt_id
    url = URL(f"{proxy.url}/rollout/{ids[0]}/attempt/{ids[1]}/v1{path}", encoded=True)
    headers = {"authorization": f"Bearer {proxy.attempt_key(*ids)}"}
    async with http.request(method, url, headers=headers, json={"model": "small"}) as response:
        answer = await response.json()
    assert response.status == 403
    assert "not_allowed" in str(answer)
    assert "allow_paths" in answer["error"]["message"]
    assert (answer.get("type") == "error") == path.startswith("/messages")  # as Anthropic's API has errors
    assert engine.received == []


@pytest.mark.parametrize(("method", "path"), CLOSED)
@pytest.mark.parametrize("is_of_attempt", [False, True], ids=["alone", "attempt"])
async def test_the_key_of_the_proxy_opens_every_path(
    serve: Serve, engine: FakeEngine, method: str, path: str, is_of_attempt: bool
) -> None:
    agent = await serve(key="secret")
    url = URL(f"{agent.base if is_of_attempt else f'{agent.proxy.url}/v1'}{path}", encoded=True)
    assert await status_of(agent.http.request(method, url, headers={"authorization": "Bearer secret"})) == 201
    assert len(engine.received) == 1


async def test_the_option_opens_a_path_and_what_is_below_it(serve: Serve, http: Any) -> None:
    agent = await serve(allow_paths=["audio", "POST rerank"])
    asked = [("POST", "/audio/speech"), ("GET", "/audio"), ("POST", "/rerank"), ("GET", "/rerank"), ("POST", "/audio2")]
    statuses = [await status_of(http.request(method, f"{agent.base}{path}")) for method, path in asked]
    assert statuses == [201, 201, 201, 403, 403]


@pytest.mark.parametrize("path", ["*", "", "/v1/audio", "audio/*", "post audio", "audio/../files", "PSOT audio"])
def test_a_path_to_open_that_is_not_one_is_an_error(path: str) -> None:
    with pytest.raises(ConfigError, match=r"allow_paths has .*'audio/speech' or 'POST audio/speech'"):
        LLMProxy(allow_unattributed=True, allow_paths=[path])


# What was stored


async def respond(agent: Agent, **fields: Any) -> str:
    async with agent.post("/responses", **{"input": "hi", **fields}) as response:
        assert response.status == 200
        if not fields.get("stream"):
            return str((await response.json())["id"])
        text = await response.text()
        return text.partition('"id": "')[2].partition('"')[0]


async def test_an_attempt_goes_on_from_its_own_response_alone(serve: Serve, http: Any, engine: FakeEngine) -> None:
    agent = await serve()
    response_id = await respond(agent)
    await respond(agent, previous_response_id=response_id)
    other = await agent.another()
    call = other.post("/responses", input="hi", previous_response_id=response_id)
    assert await refusal(call) == (400, "previous_response_not_found")
    assert len(engine.received) == 2


@pytest.mark.parametrize("fields", [{"background": True}, {"conversation": "conv_1"}, {"conversation": {"id": "c"}}])
async def test_what_would_be_fetched_later_or_belongs_to_the_account_is_refused(
    serve: Serve, fields: dict[str, Any]
) -> None:
    agent = await serve()
    message = await refused(agent.post("/responses", input="hi", **fields), 403)
    assert next(iter(fields)) in message
    assert "allow_paths" in message
    opened = await serve(allow_paths=["responses", "conversations"])
    await respond(opened, **fields)


async def test_a_backend_that_left_the_model_list_is_not_asked_for_its_responses(
    serve: Serve, engine: FakeEngine
) -> None:
    async with FakeEngine() as second:
        entries = [model(engine, "small", api_key="one"), model(second, "large", api_key="two")]
        agent = await serve(model_list=entries)
        first = await respond(agent, model="large")
        agent.proxy.update_model_list(entries[1:])
        second_id = await respond(agent, model="large", previous_response_id=first)
        agent.proxy.update_model_list(entries[:1])
        call = agent.post("/responses", input="hi", previous_response_id=second_id)
        assert await refusal(call) == (400, "previous_response_not_found")
        assert [received.headers["Authorization"] for received in second.received] == ["Bearer two"] * 2
    assert engine.received == []


async def test_of_two_replicas_a_conversation_goes_on_at_that_which_has_it(serve: Serve, engine: FakeEngine) -> None:
    async with FakeEngine() as second:
        agent = await serve(engine, second, num_retries=1)
        response_id = await respond(agent)
        has_it, has_not = (engine, second) if engine.received else (second, engine)
        has_it.faults = [429]
        await respond(agent)  # which moves the attempt
        assert has_not.received
        await respond(agent, previous_response_id=response_id)
        assert has_it.received[-1].fields["previous_response_id"] == response_id


# What cannot be placed


async def test_a_call_that_names_no_model_is_refused_where_there_are_several(
    serve: Serve, http: Any, engine: FakeEngine
) -> None:
    async with FakeEngine() as second:
        entries = [model(engine, "small"), model(second, "large")]
        agent = await serve(model_list=entries, allow_paths=["audio"])
        assert "small, large" in await refused(agent.chat(model=None), 400)
        for data in ({"model": "small"}, b"\x00"):
            assert await refusal(http.post(f"{agent.base}/audio/transcriptions", data=data)) == (400, "no_model")
        assert await status_of(agent.post("/audio/speech", model="large")) == 201
        assert len(second.received) == 1
    assert engine.received == []


@pytest.fixture
async def moved(engine: FakeEngine) -> AsyncIterator[FakeEngine]:
    """A server that leads everything to the engine."""

    async def lead(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": f"{engine.url.removesuffix('/v1')}{request.path}"})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", lead)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = FakeEngine()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/", "/rerank", "/score/"])
async def test_a_backend_that_redirects_is_an_error_and_never_the_agents_way_to_it(
    serve: Serve, engine: FakeEngine, moved: FakeEngine, path: str
) -> None:
    agent = await serve(moved, allow_paths=["rerank", "score"])
    async with agent.post(path, messages=[{"role": "user", "content": "hi"}]) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (502, "backend_redirects")
    assert "api_base" in answer["error"]["message"]
    assert "location" not in response.headers
    assert engine.received == []


@pytest.mark.parametrize("path", ["/../metrics", "/%2e%2e/sleep", "/x/%2E./%2e%2e/metrics", "/./chat/completions"])
async def test_a_path_that_goes_up_is_refused(
    http: aiohttp.ClientSession, agent: Agent, engine: FakeEngine, path: str
) -> None:
    assert await status_of(http.post(URL(f"{agent.base}{path}", encoded=True), json={"model": "small"})) == 404
    assert engine.received == []
