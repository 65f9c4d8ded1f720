"""A service as an agent: what it is asked, what its answers mean, and what is a fault."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightning_agents import HttpAgent
from lightning_proxy import LLMProxy
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.testing import FakeEngine
from programs import run, run_until_timeout

from lightning_core.emitter import find_final_reward, get_rewards_from_span
from lightning_core.errors import InvalidAgent
from lightning_core.registry import default_registry
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import LLM, NamedResources, PromptTemplate

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


@pytest.fixture
def installed_backends() -> Iterator[None]:
    with default_registry().register("backends", "openai", OpenAIBackend):
        yield


async def test_service_is_told_task_model_and_prompt(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "Bearer abc")
    agent = HttpAgent(service.url, headers={"Authorization": "os.environ/SERVICE_KEY"})
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
        "headers": {"x-rollout-id": rollout_id, "x-attempt-id": attempt_id},
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


@pytest.mark.parametrize("status", [200, 503])
async def test_service_says_itself_that_what_it_needs_is_out_of_reach(service: Service, status: int) -> None:
    service.says('{"fault": "the index is being rebuilt"}', status)

    assert (await run(HttpAgent(service.url))).fault == (
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
            for headers in (asked["headers"], {"trace_id": f"{asked['rollout_id']}/{asked['attempt_id']}"}):
                sent = {**bearer, **headers}
                async with session.post(f"{common}/chat/completions", json=chat, headers=sent) as answer:
                    assert answer.status == 200, await answer.text()
            report = {"reward": float(text == "ok")}
            async with session.post(asked["report_url"], json=report, headers=bearer) as answer:
                assert answer.status == 204
        return web.Response()

    service.answer = solve
    agent = HttpAgent(service.url, reward="report")
    async with FakeEngine() as engine:
        entry = {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}
        options: Any = {"store": store, "key": "", "attribution_header": "trace_id", "launch_mode": "asyncio"}
        async with LLMProxy(model_list=[entry], **options) as proxy:
            ran = await run(agent, "hi", resources={"main_llm": proxy.as_resource()}, store=store)

    assert ran.rollout.status == "succeeded"
    spans = list(await store.query_spans(ran.rollout.rollout_id))
    assert [span.name for span in spans[:3]] == ["chat small"] * 3
    assert find_final_reward(spans) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "url is 'localhost:8000'; it is the URL of a service, as in 'http://"),
        ({"url": "ftp://host/x"}, "url is 'ftp://host/x'; it is the URL"),
        ({"url": "http://"}, "url is 'http://'; it is the URL"),
        ({"url": "http://host:99999/"}, "url is 'http://host:99999/': Port out of range"),
        ({"reward": "output"}, "reward is 'output'; it is one of answer, report, grader"),
        (
            {"headers": {"Authorization": "os.environ/NOT_SET"}},
            "the header Authorization is to come from NOT_SET, which",
        ),
    ],
)
def test_mistakes_are_known_before_a_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidAgent, match=message):
        HttpAgent(**{"url": "http://host/", **options})
