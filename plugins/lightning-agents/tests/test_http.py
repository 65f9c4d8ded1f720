"""A service as an agent: what it is asked, what its answers mean, and what is a fault."""

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp import web
from lightning_agents import HttpAgent
from lightning_proxy import LLMProxy
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine
from programs import run, run_until_timeout
from service_client import Client

from lightning_core import FitResult, Trainer
from lightning_core.emitter import find_final_reward, get_rewards_from_span
from lightning_core.errors import InvalidAgent, NoRewards, UnknownComponent
from lightning_core.registry import default_registry
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import LLM, NamedResources, PromptTemplate, ProxyLLM

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAIN = LLM(endpoint="http://127.0.0.1:1/v1", model="small", sampling_parameters={"temperature": 0.5})


class Service:
    """Answers POSTs on a free port, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Handler = self.reward_of_one
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.began = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.url = ""

    @staticmethod
    async def reward_of_one(_: web.Request) -> web.Response:
        return web.json_response({"reward": 1})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.began.set()
        try:
            return await self.answer(request)
        except asyncio.CancelledError:
            self.hung_up.set()
            raise

    def says(self, body: str, status: int = 200) -> None:
        async def answer(_: web.Request) -> web.Response:
            headers = {"location": "/there"} if status == 307 else None
            return web.Response(text=body, status=status, headers=headers, content_type="application/json")

        self.answer = answer


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/{rest:.*}", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/rollout"
    yield made
    await runner.cleanup()


@pytest.fixture(autouse=True)
def no_notify_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_SERVER_NOTIFY_FILE", raising=False)


@pytest.fixture
def installed_backends() -> Iterator[None]:
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


async def test_service_is_told_task_model_and_prompt(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "Bearer abc")
    agent = HttpAgent(service.url, headers={"Authorization": "os.environ/SERVICE_KEY"}, attribution_header="trace_id")
    resources: NamedResources = {"main_llm": MAIN, "prompt": PromptTemplate(template="Answer: {question}")}

    ran = await run(agent, {"question": "?"}, resources=resources)

    (body,), (headers,) = service.bodies, service.headers
    rollout_id, attempt_id = ran.rollout.rollout_id, body["attempt_id"]
    assert body == {
        "task": {"question": "?"},
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "mode": "train",
        "model": "small",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "none",
        "sampling_parameters": {"temperature": 0.5},
        "prompt": "Answer: ?",
        "prompt_template": "Answer: {question}",
        "headers": {"x-rollout-id": rollout_id, "x-attempt-id": attempt_id, "trace_id": f"{rollout_id}/{attempt_id}"},
    }
    assert headers["authorization"] == "Bearer abc"
    assert (headers["x-rollout-id"], headers["x-attempt-id"]) == (rollout_id, attempt_id)
    assert headers["baggage"] == f"agentlightning.rollout_id={rollout_id},agentlightning.attempt_id={attempt_id}"
    assert find_final_reward(ran.spans) == 1.0


async def test_without_a_model_a_service_hears_no_word_of_one(service: Service) -> None:
    await run(HttpAgent(service.url), "task")

    assert service.bodies[0].keys() == {"task", "rollout_id", "attempt_id", "mode", "headers"}


@pytest.mark.parametrize(
    ("body", "rewards"),
    [
        ("0.5", [("primary", 0.5)]),
        ('{"reward": 0.25, "answer": "42"}', [("primary", 0.25)]),
        ('{"reward": {"right": 1, "short": 0}}', [("right", 1.0), ("short", 0.0)]),
        ('{"right": 1, "short": 0}', [("right", 1.0), ("short", 0.0)]),
    ],
)
async def test_answer_is_the_reward(service: Service, body: str, rewards: list[tuple[str, float]]) -> None:
    service.says(body)

    ran = await run(HttpAgent(service.url))

    assert [(each.name, each.value) for each in get_rewards_from_span(ran.spans[-1])] == rewards


@pytest.mark.parametrize(
    ("status", "body", "failure", "message"),
    [
        (500, "Traceback: boom", "ServiceFailed", "/rollout answered 500: Traceback: boom"),
        (422, '{"detail": "no field task"}', "ServiceFailed", 'answered 422: {"detail": "no field task"}'),
        (503, "", "ServiceFailed", "answered 503: "),
        (307, "", "ServiceFailed", "answered 307; give the URL that it leads to: "),
        (200, '{"error": "no tools", "reward": 1}', "ServiceFailed", 'answered with an error: {"error": "no tools"'),
        (200, "<html>", "InvalidResult", r"the answer of the service \S+ is not a reward: \"<html>\"; it is a number"),
        (200, '{"answer": "42"}', "InvalidResult", r"is not a reward: \{\"answer\": \"42\"\}"),
        (204, "", "InvalidResult", "is not a reward: null"),
    ],
)
async def test_answer_that_is_an_error_or_no_reward_is_a_failure(
    service: Service, status: int, body: str, failure: str, message: str
) -> None:
    service.says(body, status)

    ran = await run(HttpAgent(service.url))

    assert ran.rollout.status == "failed"
    assert ran.failure is not None
    assert ran.failure["type"] == failure
    assert re.search(message, ran.failure["message"])


async def test_service_that_is_not_there_is_a_fault() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/rollout"

    ran = await run(HttpAgent(url))

    assert ran.rollout.status == "requeuing"
    assert ran.fault is not None
    assert ran.fault.startswith(f"Fault: the service {url} is out of reach: ")


@pytest.mark.parametrize("when", ["before", "within"])
async def test_service_that_goes_away_before_its_answer_is_a_fault(service: Service, when: str) -> None:
    async def go_away(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if when == "within":
            await response.prepare(request)
            await response.write(b'{"rew')
        assert request.transport is not None
        request.transport.abort()
        return response

    service.answer = go_away

    assert "is out of reach" in ((await run(HttpAgent(service.url))).fault or "")


@pytest.mark.parametrize("client", ["", "service_client:Client"], ids=["own words", "client"])
async def test_service_says_itself_that_what_it_needs_is_out_of_reach(service: Service, client: str) -> None:
    service.says('{"fault": "the index is being rebuilt"}', 200 if client else 503)

    assert (await run(HttpAgent(service.url, client=client or None), {"question": "?"})).fault == (
        f"Fault: the service {service.url} says that what it needs is out of reach: the index is being rebuilt"
    )


async def test_timeout_hangs_up(service: Service) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    service.answer = never

    ran = await run_until_timeout(HttpAgent(service.url), service.began.wait())

    assert ran.failure == {"type": "AgentTimeout", "message": "the agent ran longer than 60 s"}
    await asyncio.wait_for(service.hung_up.wait(), 20)


async def test_answer_of_any_form_goes_to_a_grader(service: Service) -> None:
    service.says('{"text": "forty two", "steps": 3}')

    ran = await run(HttpAgent(service.url, reward="grader"), reward=lambda result: 1 / result["steps"])

    assert find_final_reward(ran.spans) == pytest.approx(1 / 3)


@pytest.mark.usefixtures("installed_backends")
async def test_service_calls_its_model_and_reports_through_the_proxy(service: Service) -> None:
    store = InMemoryLightningStore()

    async def solve(request: web.Request) -> web.Response:
        asked = await request.json()
        bearer = {"authorization": f"Bearer {asked['api_key']}"}
        chat = {"model": asked["model"], "messages": [{"role": "user", "content": asked["task"]}]}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{asked['base_url']}/chat/completions", json=chat, headers=bearer) as answer:
                text = (await answer.json())["choices"][0]["message"]["content"]
            # A model behind one address for all attempts: the headers say whose call it is.
            common = re.sub(r"/rollout/.*/v1", "/v1", asked["base_url"])
            for headers in (asked["headers"], {"trace_id": asked["headers"]["trace_id"]}):
                sent = {**bearer, **headers}
                async with session.post(f"{common}/chat/completions", json=chat, headers=sent) as answer:
                    assert answer.status == 200, await answer.text()
            report = {"reward": float(text == "ok")}
            async with session.post(asked["report_url"], json=report, headers=bearer) as answer:
                assert answer.status == 204
        return web.Response()

    service.answer = solve
    agent = HttpAgent(service.url, reward="report", attribution_header="trace_id")
    async with FakeEngine() as engine:
        entry = {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}
        options: Any = {"store": store, "key": "", "attribution_header": "trace_id", "launch_mode": "asyncio"}
        async with LLMProxy(model_list=[entry], **options) as proxy:
            ran = await run(agent, "hi", resources={"main_llm": proxy.as_resource()}, store=store)

    assert ran.rollout.status == "succeeded"
    spans = list(await store.query_spans(ran.rollout.rollout_id))
    assert [span.name for span in spans[:3]] == ["chat small"] * 3
    assert find_final_reward(spans) == 1.0


# A service that learns the endpoint from a file


@pytest.mark.parametrize("by_variable", [False, True], ids=["option", "variable"])
async def test_notify_file_has_the_address_before_the_first_request(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    file = tmp_path / "llm_server.notify"
    seen: list[str] = []

    async def look(_: web.Request) -> web.Response:
        seen.append(file.read_text().splitlines()[0].strip())
        return web.json_response(1)

    service.answer = look
    if by_variable:
        monkeypatch.setenv("LLM_SERVER_NOTIFY_FILE", str(file))
    agent = HttpAgent(service.url, notify_file=None if by_variable else file)

    for endpoint in ("http://10.0.0.1:8000/v1", "http://10.0.0.1:8000/v1", "http://gpu:9/v1"):
        await run(agent, resources={"main_llm": MAIN.model_copy(update={"endpoint": endpoint})})

    assert seen == ["10.0.0.1:8000", "10.0.0.1:8000", "gpu:9"]
    assert os.listdir(tmp_path) == ["llm_server.notify"]


@pytest.mark.parametrize("endpoint", ["https://api.example.org/v1", "http://host:1/models/v1", "http://host:1"])
async def test_endpoint_that_the_notify_file_cannot_tell_is_a_failure(
    service: Service, tmp_path: Path, endpoint: str
) -> None:
    agent = HttpAgent(service.url, notify_file=tmp_path / "notify")

    ran = await run(agent, resources={"main_llm": MAIN.model_copy(update={"endpoint": endpoint})})

    assert ran.failure is not None
    assert f"the endpoint '{endpoint}' cannot be told so" in ran.failure["message"]
    assert service.bodies == []


# A client of the user's own, as verl's recipe for agents that are services has it


class LetGo:
    """Remembers what it was made with, and how it was let go of."""

    ways: ClassVar[list[str]] = []

    def __init__(self, server_address: str) -> None:
        self.ways.append("made")

    async def chat(self, trace_id: str, sampling_params: dict[str, Any], **sample: Any) -> int:
        self.ways.append("chat")
        return 1 // sample["divisor"]


class Entered(LetGo):
    async def __aenter__(self) -> None:
        self.ways.append("entered")

    async def __aexit__(self, *_: object) -> None:
        self.ways.append("left")

    async def aclose(self) -> None:
        self.ways.append("closed, too")


class ClosedAsync(LetGo):
    async def aclose(self) -> None:
        self.ways.append("aclose")


class Closed(LetGo):
    def close(self) -> None:
        self.ways.append("close")


class Told:
    """Calls its model by what it is told."""

    def __init__(self, server_address: str, *, base_url: str, api_key: str) -> None:
        self.url, self.key = base_url, api_key

    async def chat(self, trace_id: str, sampling_params: dict[str, Any], **sample: Any) -> float:
        said = {"model": "small", "messages": [{"role": "user", "content": sample["question"]}]}
        bearer = {"authorization": f"Bearer {self.key}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/chat/completions", json=said, headers=bearer) as answer,
        ):
            return float((await answer.json())["choices"][0]["message"]["content"] == "ok")


class NoClient:
    def chat(self, trace_id: str) -> None: ...


@pytest.mark.parametrize("client", [Client, "service_client:Client"], ids=["class", "path"])
async def test_client_of_the_users_own_does_the_asking(service: Service, client: Any) -> None:
    agent = HttpAgent(service.url, client=client)

    ran = await run(agent, {"question": "?"}, resources={"main_llm": MAIN})

    trace_id = service.bodies[0].pop("trace")
    assert re.fullmatch(rf"{ran.rollout.rollout_id}/at-\w+", trace_id)
    assert service.bodies == [{"params": {"temperature": 0.5}, "question": "?"}]
    assert find_final_reward(ran.spans) == 1.0


@pytest.mark.parametrize("divisor", [1, 0], ids=["well", "failed"])
@pytest.mark.parametrize(
    ("client", "ways"),
    [
        (LetGo, ["made", "chat"]),
        (Entered, ["made", "entered", "chat", "left"]),
        (ClosedAsync, ["made", "chat", "aclose"]),
        (Closed, ["made", "chat", "close"]),
    ],
)
async def test_client_is_let_go_of_after_its_rollout(
    monkeypatch: pytest.MonkeyPatch, client: type, ways: list[str], divisor: int
) -> None:
    monkeypatch.setattr(LetGo, "ways", [])

    ran = await run(HttpAgent("http://host/", client=client), {"divisor": divisor})

    assert (LetGo.ways, ran.rollout.status) == (ways, "succeeded" if divisor else "failed")


async def behind_proxy(agent: HttpAgent, key: str) -> tuple[FitResult, str]:
    """Let a trainer with a proxy do a rollout; return what came of it, and of its failure."""
    store = InMemoryLightningStore()
    async with FakeEngine(["ok"]) as engine:
        entry = {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}
        proxy = {"model_list": [entry], "key": key, "attribution_header": "trace_id"}
        trainer = Trainer(algorithm="baseline", store=store, llm_proxy=proxy)
        try:
            result = await trainer.fit_async(agent, [{"question": "?"}])
        except NoRewards as exc:
            assert trainer.result is not None
            return trainer.result, str(exc)
    return result, ""


@pytest.mark.parametrize("key", ["", "secret"], ids=["open", "keyed"])
async def test_client_is_told_model_and_key_where_it_takes_them(key: str) -> None:
    result, _ = await behind_proxy(HttpAgent("http://host/", client=Told), key)

    assert (result.metrics["train_reward"], result.metrics["model_calls"]) == (1.0, 1.0)


@pytest.mark.parametrize("way", ["client", "notify_file"])
async def test_key_that_a_service_cannot_be_told_is_known_before_it_is_asked(
    service: Service, tmp_path: Path, way: str
) -> None:
    options: Any = {"client": Client} if way == "client" else {"notify_file": tmp_path / "notify"}
    agent = HttpAgent(service.url, **options)

    _, failure = await behind_proxy(agent, "secret")

    assert service.bodies == []
    assert "wants the attempt's key, which the" in failure
    assert ("client Client is not told; let" if way == "client" else "has no room for; leave it out") in failure
    assert "or start the proxy without a key: llm_proxy={'key': '', ...}" in failure
    result, _ = await behind_proxy(agent, "")
    assert (result.status, len(service.bodies)) == ("succeeded", 1)


async def test_proxy_that_is_away_is_a_fault_before_a_service_is_asked(service: Service) -> None:
    model = ProxyLLM(endpoint="http://127.0.0.1:1/v1", model="small", api_key="agl-at-1")

    ran = await run(HttpAgent(service.url, client=Client), {"question": "?"}, resources={"main_llm": model})

    assert "is out of reach" in (ran.fault or "")
    assert service.bodies == []


@pytest.mark.parametrize("name", ["trace_id", "sampling_params"])
async def test_task_with_a_field_that_the_client_is_given_otherwise_is_refused(service: Service, name: str) -> None:
    ran = await run(HttpAgent(service.url, client=Client), {"question": "?", name: "x"})

    assert ran.failure is not None
    assert ran.failure["type"] == "InvalidTask"
    assert f"the task has a field '{name}'" in ran.failure["message"]
    assert service.bodies == []


async def test_client_tells_an_error_from_a_service_that_is_away(service: Service) -> None:
    service.says("boom", 500)
    failed = await run(HttpAgent(service.url, client=Client), {"question": "?"})
    away = await run(HttpAgent("http://127.0.0.1:1/x", client=Client), {"question": "?"})
    odd = await run(HttpAgent(service.url, client=Client), "a text")

    assert failed.failure is not None
    assert "answered 500: Internal Server Error" in failed.failure["message"]
    assert "http://127.0.0.1:1/x is out of reach" in (away.fault or "")
    assert odd.failure is not None
    assert "takes the task's fields by name, and this task is a str" in odd.failure["message"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "url is 'localhost:8000'; it is the URL of a service, as in 'http://"),
        ({"url": "ftp://host/x"}, "url is 'ftp://host/x'; it is the URL"),
        ({"url": "http://"}, "url is 'http://'; it is the URL"),
        ({"url": "http://host:99999/"}, "url is 'http://host:99999/': Port out of range"),
        ({"url": 5}, "url is 5; it is the URL"),
        ({"reward": "output"}, "reward is 'output'; it is one of answer, report, grader"),
        (
            {"headers": {"Authorization": "os.environ/NOT_SET"}},
            "the header Authorization is to come from NOT_SET, which",
        ),
        ({"headers": {"n": 5}}, "headers has 'n': 5; it is a text"),
        ({"client": NoClient}, "it is a class with a method 'async def chat"),
        ({"client": "programs:run"}, "client is .*:run'; it is a class with a method"),
    ],
)
def test_mistakes_are_known_before_a_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidAgent, match=message):
        HttpAgent(**{"url": "http://host/", **options})


def test_client_that_is_not_there_is_known_before_a_run() -> None:
    with pytest.raises(UnknownComponent, match="Did you mean 'Client'"):
        HttpAgent("http://host/", client="service_client:Clint")


@pytest.mark.slow
async def test_services_are_asked_by_runner_processes(service: Service) -> None:
    agent = HttpAgent(service.url, client=Client)
    trainer = Trainer(algorithm="baseline", strategy="processes", n_runners=2)

    result = await asyncio.to_thread(trainer.fit, agent, [{"question": "a"}, {"question": "b"}])

    assert result.metrics == {"train_reward": 1.0}
    assert json.dumps(sorted(body["question"] for body in service.bodies)) == '["a", "b"]'
