"""A proxy of several processes is one: whichever worker gets a call, it is attributed, counted and paused alike."""

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import psutil
import pytest
from lightning_proxy import LLMProxy, RemoteProxy
from lightning_proxy.control import CallsLost, Settings
from lightning_proxy.spans import Capture
from lightning_proxy.testing import FakeEngine
from lightning_proxy.workers import State, Task, WorkerPool
from proxy_fixtures import Agent, MakeProxy, model

from lightning_core.budget import Budget
from lightning_core.errors import ConfigError, ProxyError
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Opens a connection for each call, so that any worker may get it."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session
    await asyncio.sleep(0)


def pool_of(proxy: LLMProxy) -> WorkerPool:
    assert proxy._running is not None
    pool = proxy._running._serving
    assert isinstance(pool, WorkerPool)
    return pool


async def statuses(proxy: LLMProxy) -> list[dict[str, Any]]:
    """What each worker says of itself."""

    async def ask(_: Any) -> list[dict[str, Any]]:
        return [await worker.channel.ask("status") for worker in pool_of(proxy)._workers]

    return await proxy._running.ask(ask)  # type: ignore[union-attr]


async def say(agent: Agent, text: str = "hi", **fields: Any) -> int:
    async with agent.chat(text, **fields) as response:
        await response.read()
        return int(response.status)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(2000):
        if await is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


async def has_received(engine: FakeEngine, calls: int) -> None:
    async def is_so() -> bool:
        return len(engine.received) >= calls

    await until(is_so)


async def on_each_worker(proxy: LLMProxy, agent: Agent) -> None:
    """Call until every worker has answered."""
    for _ in range(200):
        if all(each["calls"] for each in await statuses(proxy)):
            return
        await asyncio.gather(*(say(agent) for _ in range(8)))
    raise AssertionError("a worker gets no calls")


async def test_calls_are_attributed_and_recorded_whichever_worker_gets_them(
    make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2)
    agents = [Agent(http, proxy, await store.start_rollout({})) for _ in range(5)]
    await on_each_worker(proxy, Agent(http, proxy, await store.start_rollout({})))
    said = [(agent, f"{number}.{turn}.") for number, agent in enumerate(agents) for turn in range(20)]
    assert set(await asyncio.gather(*(say(agent, text) for agent, text in said))) == {200}
    for number, agent in enumerate(agents):
        spans = await agent.spans()
        assert len(spans) == len({span.span_id for span in spans}) == len({span.sequence_id for span in spans}) == 20
        for turn in range(20):
            assert sum(f'"{number}.{turn}."' in span.attributes["gen_ai.input.messages"] for span in spans) == 1
    status = await proxy.status()
    assert status["calls"] == len(engine.received)
    assert len(status["workers"]) == 2
    assert (status["unsent_spans"], status["lost_spans"], status["in_flight"]) == (0, 0, 0)


async def test_a_budget_is_counted_across_workers_and_never_exceeded(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    budget = Budget(calls=25)
    told: list[str] = []
    budget.listen(told.append)
    proxy = await make_proxy(engine, workers=2, budget=budget)
    agent = Agent(http, proxy, attempt)
    answered = Counter(await asyncio.gather(*(say(agent) for _ in range(60))))
    while not all(each["calls"] for each in await statuses(proxy)):  # which of them takes a call is chance
        answered.update(await asyncio.gather(*(say(agent) for _ in range(8))))
    assert (answered[200], set(answered)) == (25, {200, 402})
    assert len(engine.received) == 25
    assert (budget.used["calls"], budget.reached, told) == (25, "calls", ["calls"])
    assert budget.used["tokens"] == sum(len("u:hi\na:") + len("ok") for _ in range(25))


async def test_a_pause_holds_on_every_worker_and_new_weights_are_known_to_all(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2, pause_seconds=0.001)
    agent = Agent(http, proxy, attempt)
    await on_each_worker(proxy, agent)
    engine.hold = asyncio.Event()
    engine.received.clear()
    running = [asyncio.create_task(say(agent)) for _ in range(10)]
    await has_received(engine, 10)
    await proxy.pause(60)
    waiting = [asyncio.create_task(say(agent)) for _ in range(10)]

    async def all_wait() -> bool:
        return bool((await proxy.status())["waiting"] == 10)

    await until(all_wait)
    draining = asyncio.create_task(proxy.drain(timeout=20))
    engine.hold.set()
    assert (await draining).aborted == 0
    assert (await proxy.status())["in_flight"] == 0
    assert len(engine.received) == 10
    proxy.set_weight_version(2)
    await proxy.resume()
    assert set(await asyncio.gather(*running, *waiting)) == {200}
    versions = Counter(span.attributes.get("agentlightning.weight_version") for span in await agent.spans())
    assert versions["2"] == 10


async def test_draining_cuts_off_the_calls_of_all_workers(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2)
    agent = Agent(http, proxy, attempt)
    engine.hold = asyncio.Event()
    running = [asyncio.create_task(say(agent)) for _ in range(12)]
    await has_received(engine, 12)
    await proxy.pause()
    drained = await proxy.drain(timeout=0.05)
    assert (drained.finished, drained.aborted) == (0, 12)
    assert set(await asyncio.gather(*running)) == {503}


async def test_any_worker_steers_all_of_them_over_http(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2, key="secret")
    headers = {"authorization": "Bearer secret"}
    for what, is_paused in (("pause", True), ("resume", False)):
        async with http.post(f"{proxy.url}/control/{what}", headers=headers) as response:
            assert (await response.json())["is_paused"] is is_paused
        assert [each["is_paused"] for each in await statuses(proxy)] == [is_paused, is_paused]
    async with http.post(f"{proxy.url}/control/weights", json={"version": "7"}, headers=headers) as response:
        assert (await response.json())["weight_version"] == "7"
    other = {"model_name": "other", "litellm_params": {"model": "hosted_vllm/other", "api_base": engine.url}}
    async with http.post(f"{proxy.url}/control/model_list", json={"model_list": [other]}, headers=headers) as response:
        assert response.status == 200
    wrong = {"model_list": [{"model_name": 5}]}
    async with http.post(f"{proxy.url}/control/model_list", json=wrong, headers=headers) as response:
        assert (response.status, "no model_name" in await response.text()) == (400, True)
    for each in await statuses(proxy):
        assert (each["weight_version"], [replica["model_name"] for replica in each["replicas"]]) == ("7", ["other"])
    async with http.post(f"{proxy.url}/control/drain", headers=headers) as response:
        assert await response.json() == {"finished": 0, "aborted": 0}
    base = f"{proxy.url}/rollout/{attempt.rollout_id}/attempt/{attempt.attempt.attempt_id}"
    async with http.post(f"{base}/bind", json={"value": "x" * 10}, headers=headers) as response:
        assert response.status == 204


async def test_calls_of_an_attempt_stay_on_one_replica_whichever_worker_makes_them(
    make_proxy: MakeProxy, store: InMemoryLightningStore, http: Any
) -> None:
    async with FakeEngine(["one"]) as first, FakeEngine(["two"]) as second:
        proxy = await make_proxy(first, second, workers=2)
        agents = [Agent(http, proxy, await store.start_rollout({})) for _ in range(8)]
        await on_each_worker(proxy, agents[0])
        places = []
        for agent in agents:
            await asyncio.gather(*(say(agent) for _ in range(8)))
            answers = {span.attributes["gen_ai.output.messages"] for span in await agent.spans()}
            assert len(answers) == 1, "the calls of an attempt went to both"
            places.append("one" in answers.pop())
        assert sum(places) == 4


async def test_an_attempt_moves_with_all_workers_when_its_replica_dies(
    make_proxy: MakeProxy, store: InMemoryLightningStore, attempt: AttemptedRollout, http: Any
) -> None:
    async with FakeEngine(["one"]) as first, FakeEngine(["two"]) as second:
        proxy = await make_proxy(first, second, workers=2)
        agent = Agent(http, proxy, attempt)
        await on_each_worker(proxy, agent)
        await first.stop()
        assert {await say(agent) for _ in range(20)} == {200}
        before = len(second.received)
        assert {await say(agent) for _ in range(20)} == {200}
        assert len(second.received) == before + 20


async def test_an_attempt_that_has_ended_may_call_no_worker(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2)
    agent = Agent(http, proxy, attempt)
    await on_each_worker(proxy, agent)
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id)
    assert set(await asyncio.gather(*(say(agent) for _ in range(20)))) == {403}


async def test_a_value_that_stands_for_an_attempt_is_known_to_every_worker(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = await make_proxy(engine, workers=2, attribution_header="x-trace")
    await asyncio.to_thread(proxy.bind, "session-1", attempt.rollout_id, attempt.attempt.attempt_id)
    body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}

    async def call() -> int:
        async with http.post(
            f"{proxy.url}/v1/chat/completions", json=body, headers={"x-trace": "session-1"}
        ) as response:
            await response.read()
            return int(response.status)

    assert set(await asyncio.gather(*(call() for _ in range(30)))) == {200}
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id, end=False)
    assert len(await proxy.store.query_spans(attempt.rollout_id)) == 30  # type: ignore[union-attr]


async def test_a_worker_that_dies_is_replaced_and_what_it_lost_is_told(
    make_proxy: MakeProxy,
    engine: FakeEngine,
    store: InMemoryLightningStore,
    http: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = await make_proxy(engine, workers=2, pause_seconds=0.001)
    unlucky = Agent(http, proxy, await store.start_rollout({}))
    lucky = Agent(http, proxy, await store.start_rollout({}))
    await on_each_worker(proxy, lucky)
    await lucky.spans()
    proxy.set_weight_version("5")
    engine.hold = asyncio.Event()
    engine.received.clear()
    calling = asyncio.create_task(say(unlucky))
    await has_received(engine, 1)
    before = (await proxy.status())["workers"]
    (busy,) = [worker for worker in pool_of(proxy)._workers if worker.open_attempts]
    os.kill(busy.pid or 0, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await calling
    engine.hold.set()
    assert {await say(lucky) for _ in range(10)} == {200}  # the other one goes on
    await proxy.pause(60)

    async def is_replaced() -> bool:
        return bool((await proxy.status())["worker_restarts"])

    await until(is_replaced)
    status = await proxy.status()
    assert len(status["workers"]) == 2
    assert len(set(status["workers"]) & set(before)) == 1
    told = [(each["weight_version"], each["is_paused"]) for each in await statuses(proxy)]
    assert told == [("5", True), ("5", True)]
    waiting = [asyncio.create_task(say(lucky)) for _ in range(10)]

    async def all_wait() -> bool:
        return bool((await proxy.status())["waiting"] == 10)

    await until(all_wait)
    await proxy.resume()
    assert set(await asyncio.gather(*waiting)) == {200}
    with pytest.raises(CallsLost, match="a worker of the proxy has died with calls of attempt"):
        await unlucky.spans()
    assert await lucky.spans()
    assert "lightning.proxy_worker_died" in caplog.text
    assert "signal SIGKILL" in caplog.text


async def test_a_worker_that_fails_as_it_stops_is_ended_all_the_same(
    engine: FakeEngine, store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = LLMProxy(model_list=[model(engine)], store=store, key="", workers=2)
    await proxy.start()
    pids = (await proxy.status())["workers"]
    channel = pool_of(proxy)._workers[0].channel

    async def fail(*_: Any) -> None:
        raise ProxyError("RuntimeError: a backend would not close")

    channel.ask = fail  # type: ignore[method-assign, assignment]
    await proxy.stop()
    assert "a backend would not close" in caplog.text
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_questions_do_not_keep_a_worker_from_beginning(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout
) -> None:
    proxy = await make_proxy(engine, workers=2)
    before = pool_of(proxy)._changes
    await proxy.flush(attempt.rollout_id, attempt.attempt.attempt_id, end=False)
    await proxy.status()
    assert pool_of(proxy)._changes == before
    await proxy.pause()
    assert pool_of(proxy)._changes > before


async def test_a_start_that_is_cancelled_leaves_neither_sockets_nor_processes(store: InMemoryLightningStore) -> None:
    def held() -> set[object]:  # by this process, which may run other tests, too
        here = psutil.Process()
        listening = (each.laddr for each in here.net_connections() if each.status == psutil.CONN_LISTEN)
        return {*listening, *here.children()}

    before = held()
    task = Task(store, None, Settings(), Capture())
    for turns in range(12):  # of the event loop: the store is served to the workers, and they are started
        pool = WorkerPool(2, task, State(), budget=None)
        starting = asyncio.create_task(pool.start("127.0.0.1", 0))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
        assert starting.cancelled()
        assert held() <= before


async def test_a_refused_call_is_told_to_whoever_asks_any_worker(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    budget = Budget(calls=1)
    proxy = await make_proxy(engine, workers=2, budget=budget, key="secret")
    remotes = [RemoteProxy(proxy.url, key="secret") for _ in range(4)]
    try:
        asked = [asyncio.create_task(each.budget_beyond(0)) for each in remotes]

        async def all_wait() -> bool:
            return len(budget._refusal_listeners) == len(asked)

        await until(all_wait)
        agent = Agent(http, proxy, attempt)
        authorization = {"authorization": "Bearer secret"}
        assert [await say(agent, headers=authorization) for _ in range(2)] == [200, 402]
        answers = await asyncio.wait_for(asyncio.gather(*asked), 15)  # they would wait for 20 s
        assert [answer["refusals"] for answer in answers] == [1] * 4
        waiting = asyncio.create_task(remotes[0].budget_beyond(1))

        async def one_waits() -> bool:
            return len(budget._refusal_listeners) == 1

        await until(one_waits)
        await proxy.stop()
        assert (await waiting)["refusals"] == 1  # an answer, and not the word of a proxy that was kept for too long
    finally:
        for each in remotes:
            await each.stop()


async def test_it_stops_and_starts_again_on_its_port_and_leaves_no_process(
    engine: FakeEngine, store: InMemoryLightningStore, attempt: AttemptedRollout, http: Any
) -> None:
    proxy = LLMProxy(model_list=[model(engine)], store=store, key="", workers=2)
    began = time.monotonic()
    await proxy.start()
    pids, port = (await proxy.status())["workers"], proxy.port
    assert await say(Agent(http, proxy, attempt)) == 200
    await proxy.restart()
    assert proxy.port == port
    assert await say(Agent(http, proxy, attempt)) == 200
    pids += (await proxy.status())["workers"]
    await proxy.stop()
    assert time.monotonic() - began < 90
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert len(await store.query_spans(attempt.rollout_id)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers is 0; it has to be more than 0"),
        ({"workers": 2, "redact": lambda what, value: value}, "redact cannot be sent to the proxy's workers"),
        ({"workers": 2, "model_list": [{"model_name": "small", "litellm_params": 5}]}, "litellm_params is a int"),
        ({"workers": 2, "model_list": [{"model_name": "m", "litellm_params": {"api_base": "x"}}]}, "api_base is 'x'"),
    ],
)
async def test_what_workers_cannot_have_is_one_error(
    store: InMemoryLightningStore, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await LLMProxy(store=store, key="", **options).start()


async def test_a_backend_that_is_an_object_cannot_be_shared(store: InMemoryLightningStore) -> None:
    from lightning_proxy.openai_backend import OpenAIBackend

    backend = OpenAIBackend("http://127.0.0.1:1/v1")
    proxy = LLMProxy(store=store, key="", workers=2, model_list=[{"model_name": "small", "backend": backend}])
    with pytest.raises(ConfigError, match=r"model_list\[0\] \(small\): its backend is an object of this process"):
        await proxy.start()
    assert not proxy.is_running()


async def test_a_stored_response_is_known_to_all_workers_and_of_its_attempt_alone(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: Any
) -> None:
    async with FakeEngine() as second:
        entries = [model(engine, "small"), model(second, "large")]
        proxy = await make_proxy(model_list=entries, workers=2)
        assert proxy.store is not None
        agent, other = (Agent(http, proxy, each) for each in (attempt, await proxy.store.start_rollout({})))
        ids = []
        for stream in (False, True):
            async with agent.post("/responses", model="large", input="hi", stream=stream) as response:
                ids.append(re.findall(r'"id": "(resp_\d+)"', await response.text())[0])
        proxy.update_model_list(entries[::-1])

        async def status(asking: Agent, response_id: str) -> int:
            async with http.get(f"{asking.base}/responses/{response_id}") as response:
                return int(response.status)

        asked = [(each, response_id) for each in (agent, other) for response_id in ids]
        statuses = await asyncio.gather(*(status(*each) for each in asked * 4))
        assert Counter(zip(asked * 4, statuses, strict=True)) == {
            **{((agent, response_id), 201): 4 for response_id in ids},
            **{((other, response_id), 404): 4 for response_id in ids},
        }
        assert len(second.received) == 2 + 8
    assert engine.received == []
