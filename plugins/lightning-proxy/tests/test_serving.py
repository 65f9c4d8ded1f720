"""What agents get: the answer of the backend, as it gave it, in any of the APIs."""

import asyncio
import io
import json
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_proxy import LLMProxy
from lightning_proxy.models import make_replicas
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, model, refused, status_of
from yarl import URL

from lightning_core.errors import ConfigError, ProxyError
from lightning_core.registry import default_registry
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import ProxyLLM


async def events_of(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    text = await response.text()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


@pytest.mark.usefixtures("vllm")
async def test_a_chat_call_is_answered_without_what_the_agent_did_not_ask_for(agent: Agent, engine: FakeEngine) -> None:
    async with agent.chat() as response:
        answer = await response.json()
    assert response.status == 200
    message = answer["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "ok")
    assert answer["choices"][0]["logprobs"] is None
    assert "token_ids" not in answer["choices"][0]
    assert "prompt_token_ids" not in answer
    sent = engine.received[0].fields
    assert sent["return_token_ids"] is True
    assert sent["logprobs"] is True


async def test_what_the_agent_asked_for_stays_in_its_answer(agent: Agent) -> None:
    async with agent.chat(return_token_ids=True, logprobs=True) as response:
        answer = await response.json()
    assert answer["prompt_token_ids"]
    assert answer["choices"][0]["token_ids"] == [111, 107]
    assert [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]] == ["o", "k"]


@pytest.mark.usefixtures("vllm")
async def test_an_agent_that_switches_logprobs_off_sees_none(agent: Agent) -> None:
    async with agent.chat(logprobs=False, return_token_ids=False) as response:
        answer = await response.json()
    assert answer["choices"][0]["logprobs"] is None
    assert (await agent.span()).attributes["response_logprobs"] == [-0.111, -0.107]


async def test_bytes_are_untouched_where_nothing_is_added(
    http: aiohttp.ClientSession, agent: Agent, engine: FakeEngine
) -> None:
    body = (
        b'{ "model":"small",  "return_token_ids":true, "logprobs" : true,'
        b'"messages":[{"role":"user","content":"\\u00fc"}]}'
    )
    assert await status_of(http.post(f"{agent.base}/chat/completions", data=body)) == 200
    assert engine.received[0].body == body


@pytest.mark.usefixtures("vllm")
async def test_a_stream_comes_while_the_backend_still_writes_it(agent: Agent, engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()
    async with agent.chat(stream=True) as response:
        first = await response.content.readuntil(b"\n\n")
        assert json.loads(first[6:])["choices"][0]["delta"]["role"] == "assistant"
        assert engine.open_calls == 1
        engine.hold.set()
        rest = await response.content.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b"token_ids" not in first + rest
    assert b'"usage"' not in first + rest


async def test_a_stream_has_the_usage_that_the_agent_asked_for(agent: Agent) -> None:
    async with agent.chat(stream=True, stream_options={"include_usage": True}) as response:
        events = await events_of(response)
    assert events[-1]["usage"]["prompt_tokens"] == 7
    assert events[-1]["choices"] == []


async def test_what_the_option_opens_passes_through_untouched(
    serve: Serve, http: aiohttp.ClientSession, engine: FakeEngine
) -> None:
    agent = await serve(allow_paths=["audio"])
    async with http.post(URL(f"{agent.base}/audio/speech%20x?voice=a%2Fb", encoded=True), data=b"\x00\xff") as response:
        assert response.status == 201
        assert await response.read() == b"\x00\xff"
        assert response.headers["content-type"] == "application/octet-stream"
    assert engine.received[0].path == "/v1/audio/speech%20x?voice=a%2Fb"


async def test_the_model_is_named_as_the_backend_knows_it(make_proxy: MakeProxy, engine: FakeEngine, http: Any) -> None:
    proxy = await make_proxy(allow_unattributed=True)
    entry = model(engine)
    entry["litellm_params"]["model"] = "openai/org/real-name"
    proxy.update_model_list([entry])
    assert (
        await status_of(http.post(f"{proxy.url}/v1/chat/completions", json={"model": "small", "messages": []})) == 200
    )
    assert engine.received[0].fields["model"] == "org/real-name"


async def test_a_key_of_the_backend_is_sent_and_the_agents_is_not(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-of-the-engine")
    agent = await serve(params={"api_key": "os.environ/ENGINE_KEY"})
    assert await status_of(agent.chat(headers={"authorization": "Bearer agents-own", "cookie": "a=b"})) == 200
    headers = {name.lower(): value for name, value in engine.received[0].headers.items()}
    assert headers["authorization"] == "Bearer sk-of-the-engine"
    assert "cookie" not in headers
    assert "sk-of-the-engine" not in (await agent.span()).model_dump_json()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'{"model": "smal", "messages": []}', 404, "model_not_found"),
    ],
)
async def test_a_wrong_request_gets_openais_error(agent: Agent, http: Any, body: bytes, status: int, code: str) -> None:
    async with http.post(f"{agent.base}/chat/completions", data=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    if code == "model_not_found":
        assert "Did you mean 'small'?" in error["message"]


async def test_a_prompt_of_ten_megabytes_goes_through(agent: Agent, engine: FakeEngine, http: Any) -> None:
    body = io.BytesIO(json.dumps({"model": "small", "input": "x" * 10_000_000}).encode())
    assert await status_of(http.post(f"{agent.base}/embeddings", data=body)) == 200
    assert len(engine.received[0].body) > 10_000_000


async def test_a_body_over_the_limit_is_refused_in_words(make_proxy: MakeProxy, engine: FakeEngine, http: Any) -> None:
    proxy = await make_proxy(engine, allow_unattributed=True, max_body_bytes=1000)
    call = http.post(f"{proxy.url}/v1/chat/completions", data=b"x" * 1001)
    assert "larger than 1000 bytes" in await refused(call, 413)


async def test_the_resource_is_that_of_agentlightning(make_proxy: MakeProxy, engine: FakeEngine) -> None:
    proxy = await make_proxy(engine)
    general = proxy.as_resource()
    assert isinstance(general, ProxyLLM)
    assert general.model == "small"
    assert proxy.as_resource("r", "a").endpoint == general.get_base_url("r", "a")
    assert general.get_base_url("r", "a") == f"{proxy.url}/rollout/r/attempt/a/v1"
    with pytest.raises(ValueError, match="go together"):
        proxy.as_resource("r")
    proxy.update_model_list([])
    with pytest.raises(ValueError, match="say which model"):
        proxy.as_resource()


@pytest.mark.usefixtures("nothing_left_running")
async def test_it_runs_in_a_thread_of_its_own_and_starts_again_on_its_port(
    engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    rollout = await store.start_rollout({})
    proxy = LLMProxy(model_list=[model(engine)], store=store, key="")
    async with aiohttp.ClientSession() as http:
        await proxy.start()
        port = proxy.port
        assert await status_of(Agent(http, proxy, rollout).chat()) == 200
        await proxy.restart()
        assert proxy.port == port
        agent = Agent(http, proxy, rollout)
        assert await status_of(agent.chat()) == 200
        assert len(await agent.spans()) == 2
        await proxy.stop()
    assert not proxy.is_running()


async def test_what_cannot_be_served_is_said_at_once(store: InMemoryLightningStore, engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached from other machines, so the proxy needs a key"):
        LLMProxy(host="0.0.0.0", key="")
    with pytest.raises(TypeError, match="max_calls"):
        LLMProxy(max_calls=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="has no store"):
        await LLMProxy(key="").start()
    with pytest.raises(ConfigError, match=r"model_list\[0\] has no model_name"):
        await LLMProxy(store=store, key="", model_list=[{"litellm_params": {}}]).start()
    with pytest.raises(ConfigError, match="api_base is 'nowhere'"):
        await LLMProxy(
            store=store, key="", model_list=[{"model_name": "a", "litellm_params": {"api_base": "nowhere"}}]
        ).start()


@pytest.mark.usefixtures("vllm")
async def test_only_what_a_backend_refuses_is_left_out(
    agent: Agent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    real = engine._fail

    async def refuse(request: Any, fields: Any, fault: Any) -> Any:
        if "stream_options" in fields:
            return web.json_response({"error": {"message": "extra fields not permitted: stream_options"}}, status=422)
        return await real(request, fields, fault)

    engine._fail = refuse  # type: ignore[method-assign]
    for text in "abc":
        async with agent.chat(text, stream=True) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
    assert ["stream_options" in received.fields for received in engine.received] == [True, False] * 3
    assert all(span.attributes["agentlightning.has_token_ids"] for span in await agent.spans())
    assert caplog.text.count("lightning.backend_refuses_fields") == 1


@pytest.mark.usefixtures("vllm")
async def test_a_request_that_is_wrong_itself_does_not_end_the_asking_for_tokens(
    agent: Agent, engine: FakeEngine
) -> None:
    real = engine._fail

    async def refuse(request: Any, fields: Any, fault: Any) -> Any:
        if not fields.get("messages"):  # vLLM's words repeat the request, and so name the fields that were added
            message = f"1 validation error: {{'loc': ('body', 'messages'), 'msg': 'Field required', 'input': {fields}}}"
            return web.json_response({"error": {"message": message, "type": "Bad Request"}}, status=400)
        return await real(request, fields, fault)

    engine._fail = refuse  # type: ignore[method-assign]
    assert await status_of(agent.chat(messages=[])) == 400
    assert await status_of(agent.chat()) == 200
    assert (await agent.spans())[-1].attributes["agentlightning.has_token_ids"] is True


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    "path",
    [
        "/ch%61t/completions",
        "/chat%2Fcompletions",
        "//chat/completions",
        "/chat/completions/",
        "/%76%31/chat/completions",
    ],
)
async def test_a_call_is_recorded_however_its_path_is_written(
    agent: Agent, http: aiohttp.ClientSession, engine: FakeEngine, path: str
) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
    assert await status_of(http.post(URL(f"{agent.base}{path}", encoded=True), json=body)) == 200
    assert [received.path for received in engine.received] == ["/v1/chat/completions"]
    assert (await agent.span()).attributes["response_token_ids"] == [111, 107]


@pytest.mark.usefixtures("nothing_left_running")
async def test_a_start_that_is_cancelled_leaves_nothing_running(
    engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    proxy = LLMProxy(model_list=[model(engine)], store=store, key="")
    make, is_at_it, may_go_on = proxy._make, threading.Event(), threading.Event()

    def slowly(store: Any) -> Any:
        is_at_it.set()
        assert may_go_on.wait(20)
        return make(store)

    proxy._make = slowly  # type: ignore[method-assign]
    starting = asyncio.create_task(proxy.start())
    assert await asyncio.to_thread(is_at_it.wait, 20)
    starting.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not proxy.is_running()


@pytest.mark.parametrize("launch_mode", ["asyncio", "thread"])
async def test_calls_are_recorded_in_the_store_that_it_has_by_now(
    serve: Serve, store: InMemoryLightningStore, launch_mode: str
) -> None:
    before = await serve(launch_mode=launch_mode)
    assert await status_of(before.chat()) == 200
    await before.proxy.flush(before.rollout.rollout_id, before.rollout.attempt.attempt_id)

    before.proxy.set_store(other := InMemoryLightningStore())
    assert before.proxy.store is other
    after = await before.another()
    assert await status_of(after.chat()) == 200
    assert len(await after.spans()) == 1
    assert (await store.query_spans(before.rollout.rollout_id)).total == 1
    assert await status_of(before.chat()) in (403, 404, 410)  # it is not in this store


async def test_calls_that_are_not_stored_yet_keep_their_store(agent: Agent, store: InMemoryLightningStore) -> None:
    async with agent.chat(stream=True) as response:
        await response.content.readany()
        with pytest.raises(ProxyError, match="calls are on their way to the present store; flush them"):
            agent.proxy.set_store(InMemoryLightningStore())
        assert agent.proxy.store is store
        await response.read()


def test_a_proxy_takes_launcher_args() -> None:
    proxy = LLMProxy(launcher_args=SimpleNamespace(host=None, port=4321, launch_mode="asyncio"))
    assert (proxy.port, proxy.url) == (4321, "http://127.0.0.1:4321")


@pytest.mark.parametrize(("module", "server"), [("llm_proxy", "fastapi"), ("openai_backend", "uvicorn")])
def test_a_proxy_costs_no_web_framework_and_a_backend_no_server(module: str, server: str) -> None:
    program = f"import sys; import lightning_proxy.{module}; print({server!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("port", "abc", "it has to be a whole number"),
        ("port", 70000, "it has to be 65535 or less"),
        ("host", 5, "it has to be a text"),
        ("allow_unattributed", "no", "it has to be true or false"),
        ("num_retries", 1.5, "it has to be a whole number"),
        ("max_concurrent_calls", 0, "it has to be more than 0"),
        ("queue_seconds", -3, "it has to be 0 or more"),
        ("queue_seconds", float("nan"), "it has to be a finite number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"^LLMProxy: {option} is .*; {wanted}"):
        LLMProxy(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("timeout", 0, "it has to be more than 0"),
        ("stream_timeout", "soon", "it has to be a number"),
        ("headers", {"x": 5}, "it has to be a text"),
        ("api_key", 5, "it has to be a text"),
    ],
)
def test_a_wrong_value_of_a_backend_names_its_entry(option: str, value: Any, wanted: str) -> None:
    params = {"model": "hosted_vllm/small", "api_base": "http://127.0.0.1:1/v1", option: value}
    entry = {"model_name": "small", "litellm_params": params}
    with pytest.raises(ConfigError, match=rf"^model_list\[0\] \(small\): backend 'openai': {option}.* is .*; {wanted}"):
        make_replicas([entry], default_registry())


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    with pytest.raises(ConfigError) as told:
        LLMProxy(key=31415926)  # type: ignore[arg-type]
    assert "31415926" not in str(told.value)
