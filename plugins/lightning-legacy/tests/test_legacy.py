"""Agents that know only the protocol of agentlightning 0.1 and 0.2, and a store of today."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from lightning_http import LightningStoreServer
from lightning_legacy import AgentLightningClient, AgentLightningServer, DevTaskLoader, LegacyAgentRunner

from lightning_core import (
    LLM,
    InMemoryLightningStore,
    LitAgent,
    LitAgentRunner,
    OtelTracer,
    PromptTemplate,
    ProxyLLM,
    TracerTraceToTriplet,
    Trainer,
    emit_reward,
)
from lightning_core.errors import ConfigError, StoreUnavailable
from lightning_core.rewards import find_final_reward
from lightning_core.types import Rollout, Span

pytestmark = pytest.mark.filterwarnings("ignore:the protocol of agentlightning:DeprecationWarning")

PROMPT = PromptTemplate(template="Add: {question}")

TRACE = [
    {  # what `json.loads(readable_span.to_json())` gives, and so the runner of 0.2
        "name": "openai.chat.completion",
        "context": {"trace_id": "0x" + "1" * 32, "span_id": "0x" + "2" * 16, "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": "0x" + "3" * 16,
        "start_time": "2025-11-01T10:00:00.500000Z",
        "end_time": "2025-11-01T10:00:01.500000Z",
        "status": {"status_code": "OK"},
        "attributes": {"gen_ai.operation.name": "chat", "prompt_token_ids": [1, 2], "response_token_ids": [3]},
        "events": [{"name": "said", "timestamp": "2025-11-01T10:00:01.000000Z", "attributes": {"text": "5"}}],
        "links": [],
        "resource": {"attributes": {"service.name": "agent"}, "schema_url": ""},
    },
]


class AddingAgent(LitAgent[Any]):
    """Written for 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def on_rollout_start(self, task, runner, tracer):  # type: ignore[no-untyped-def, override]
        self.told.append(f"start {task.input}")

    def on_rollout_end(self, task, rollout, runner, tracer):  # type: ignore[no-untyped-def, override]
        self.told.append(f"end {rollout.final_reward}")
        raise RuntimeError("a hook broke")

    def validation_rollout(self, task, rollout_id, resources):  # type: ignore[no-untyped-def, override]
        if task == "broken":
            raise RuntimeError("it broke")
        emit_reward(0.25)
        return float(resources["prompt"].format(question=task) == f"Add: {task}")

    training_rollout = validation_rollout  # type: ignore[assignment]

    async def validation_rollout_async(self, task, rollout_id, resources):  # type: ignore[no-untyped-def, override]
        return self.validation_rollout(task, rollout_id, resources)


@asynccontextmanager
async def serving(store: Any = None, **options: Any) -> AsyncIterator[tuple[AgentLightningServer, httpx.AsyncClient]]:
    async with (
        AgentLightningServer(port=0, store=store, **options) as server,
        httpx.AsyncClient(base_url=server.endpoint) as client,
    ):
        yield server, client


def run_agent(endpoint: str, max_tasks: int) -> int:
    client = AgentLightningClient(endpoint, poll_interval=0.05)
    return LegacyAgentRunner(AddingAgent(), client, OtelTracer(), TracerTraceToTriplet(), max_tasks=max_tasks).iter()


async def report(client: httpx.AsyncClient, rollout_id: str, **payload: Any) -> httpx.Response:
    return await client.post("/rollout", json={"rollout_id": rollout_id, **payload})


async def claim(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = (await client.get("/task")).json()
    assert answer["is_available"]
    task: dict[str, Any] = answer["task"]
    return task


def test_an_agent_of_0_1_takes_part_in_a_run_of_today() -> None:
    store = InMemoryLightningStore()

    class Join:
        """Lets an agent join the run."""

        async def lightning_run_start(self, run_id: str) -> None:
            self.agent = asyncio.create_task(self._work())

        async def _work(self) -> None:
            async with AgentLightningServer(port=0, store=store) as server:
                await asyncio.to_thread(run_agent, server.endpoint, 3)

        async def lightning_run_end(self, run_id: str, status: str) -> None:
            await self.agent

    trainer = Trainer(
        algorithm="baseline",
        store=store,
        strategy={"name": "processes", "role": "algorithm"},
        initial_resources={"prompt": PROMPT},
        hooks=[Join()],
    )
    result = trainer.fit(AddingAgent(), train_dataset=["2+3", "1+1", "broken"])

    assert (result.rollouts.succeeded, result.rollouts.failed) == (2, 1)
    [failure] = result.failures
    assert "the agent raised" in failure.message
    spans = asyncio.run(store.query_spans(asyncio.run(store.query_rollouts())[0].rollout_id))
    assert find_final_reward(spans) == 1.0


async def test_what_0_2_sends_becomes_spans_and_the_reward() -> None:
    store = InMemoryLightningStore()
    resources_id = (await store.add_resources({"prompt": PROMPT})).resources_id
    await store.enqueue_rollout({"question": "2+3"}, mode="train", metadata={"row": 7})
    async with serving(store) as (_, client):
        task = await claim(client)
        assert (task["input"], task["mode"], task["metadata"]) == ({"question": "2+3"}, "train", {"row": 7})
        for where in (task["resources_id"], "latest"):
            update = (await client.get(f"/resources/{where}")).json()
            assert (update["resources_id"], update["resources"]["prompt"]["template"]) == (
                resources_id,
                PROMPT.template,
            )
        answer = await report(client, task["rollout_id"], final_reward=0.5, trace=TRACE, logs=["done"])
        assert answer.json()["status"] == "ok"
        assert (await client.get("/task")).json() == {"is_available": False, "task": None}

    rollout = await store.get_rollout_by_id(task["rollout_id"])
    assert rollout is not None
    assert rollout.status == "succeeded"
    spans = await store.query_spans(rollout.rollout_id)
    call = spans[0]
    assert (call.span_id, call.parent_id, call.status.status_code) == ("2" * 16, "3" * 16, "OK")
    assert call.start_time is not None
    assert call.end_time == call.start_time + 1 == call.events[0].timestamp + 0.5  # type: ignore[operator]
    assert find_final_reward(spans) == 0.5
    [triplet] = TracerTraceToTriplet()(spans)
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, "the agent raised, or sent neither a reward nor a trace"),
        ({"trace": [{"name": "half a span"}]}, "the trace cannot be read: KeyError: 'context'"),
        ({"final_reward": "much"}, "final_reward"),
    ],
)
async def test_an_agent_that_sends_nothing_of_use_has_failed(payload: dict[str, Any], reason: str) -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("2+3")
    async with serving(store) as (_, client):
        task = await claim(client)
        assert (await client.get(f"/resources/{task['resources_id']}")).json()["resources"] == {}
        await report(client, task["rollout_id"], **payload)
    attempt = await store.get_latest_attempt(task["rollout_id"])
    assert attempt is not None
    assert attempt.status == "failed"
    failure = (attempt.metadata or {})["failure"]
    assert reason in failure["message"]
    assert "where" not in failure


async def test_half_a_character_in_a_log_loses_no_result() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("2+3")
    async with serving(store) as (_, client):
        task = await claim(client)
        body = json.dumps({"rollout_id": task["rollout_id"], "final_reward": 1.0, "logs": ["\ud800"]})
        assert (await client.post("/rollout", content=body)).status_code == 200
    assert find_final_reward(await store.query_spans(task["rollout_id"])) == 1.0


async def test_the_server_says_when_its_run_has_ended() -> None:
    store = InMemoryLightningStore()
    await store.begin_run()
    async with serving(store) as (server, client):
        assert (await client.get("/task")).json()["is_available"] is False
        assert not server.no_more.is_set()
        await store.end_run()
        assert (await client.get("/task")).json()["is_available"] is False
        assert server.no_more.is_set()


async def test_a_task_that_is_not_sent_back_is_given_to_another_agent() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("2+3")
    async with serving(store, task_timeout_seconds=0.05) as (_, client):
        first = await claim(client)
        await until_queued_again(store, first["rollout_id"])
    async with serving(store) as (_, client):
        second = await claim(client)
        assert (second["rollout_id"], second["num_claims"]) == (first["rollout_id"], 2)
    # The server was stopped, so the claim was given back.
    await until_queued_again(store, first["rollout_id"])
    async with serving(store) as (_, client):
        late = await report(client, first["rollout_id"], final_reward=1.0)
        assert late.status_code == 404
        assert "is not claimed here" in late.json()["detail"]


async def test_a_rollout_whose_outcome_cannot_be_stored_is_queued_again_at_once() -> None:
    class Flickering(InMemoryLightningStore):
        async def add_many_spans(self, spans: Any) -> Any:
            raise StoreUnavailable("the store is out of reach")

    store = Flickering()
    await store.enqueue_rollout("2+3")
    async with serving(store) as (_, client):
        task = await claim(client)
        assert (await report(client, task["rollout_id"], final_reward=1.0)).status_code == 503
        attempt = await store.get_latest_attempt(task["rollout_id"])
        assert attempt is not None
        assert "its outcome was not stored: the store is out of reach" in str(attempt.metadata)
        assert (await claim(client))["num_claims"] == 2


async def until_queued_again(store: InMemoryLightningStore, rollout_id: str) -> None:
    async with asyncio.timeout(20):
        while True:
            rollout = await store.get_rollout_by_id(rollout_id)
            if rollout is not None and rollout.status == "requeuing":
                return
            await asyncio.sleep(0.01)


async def test_a_model_behind_the_proxy_has_the_url_of_the_attempt() -> None:
    store = InMemoryLightningStore()
    await store.add_resources({"model": ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="m"), "prompt": PROMPT})
    await store.enqueue_rollout("2+3")
    async with serving(store) as (_, client):
        task = await claim(client)
        update = (await client.get(f"/resources/{task['resources_id']}")).json()
        attempt = await store.get_latest_attempt(task["rollout_id"])
        assert attempt is not None
        model = LLM.model_validate(update["resources"]["model"])
        assert model.endpoint == f"http://127.0.0.1:9/rollout/{task['rollout_id']}/attempt/{attempt.attempt_id}/v1"
        assert update["resources_id"] == task["resources_id"]


async def test_a_server_that_others_can_reach_wants_its_key() -> None:
    with pytest.raises(ConfigError, match="so the server needs a key"):
        AgentLightningServer("0.0.0.0")
    async with serving(key="secret") as (server, client):
        assert (await client.get("/task")).status_code == 401
        assert (await client.get("/task", auth=("agent", "wrong"))).status_code == 401
        await server.queue_task("2+3")
        agent = AgentLightningClient(server.endpoint.replace("//", "//agent:secret@"))
        task = await agent.poll_next_task_async()
        assert task is not None
        assert task.input == "2+3"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_an_image_in_a_page_of_another_site_claims_nothing(method: str, site: str) -> None:
    async with serving() as (server, client):
        rollout_id = await server.queue_task("2+3")
        # As a browser sends it for <img src="http://127.0.0.1:8000/task">: without an Origin.
        image = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        assert (await client.request(method, "/task", headers=image)).status_code == 403
        foreign = await client.post("/rollout", json={"rollout_id": "x"}, headers={"Origin": "http://evil.example"})
        assert foreign.status_code == 403
        assert (await claim(client))["rollout_id"] == rollout_id


async def test_a_body_nested_too_deeply_is_refused_and_the_claim_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (server, client):
        await server.queue_task("2+3")
        task = await claim(client)
        nested = "[" * 990 + "]" * 990
        for body in ("[" * 100_000, f'{{"rollout_id": "{task["rollout_id"]}", "logs": {nested}}}'):
            refused = await client.post("/rollout", content=body)
            assert refused.status_code == 422
            assert "recursion limit exceeded" in refused.json()["detail"]
        assert not any(record.exc_info for record in caplog.records)
        assert (await report(client, task["rollout_id"], final_reward=1.0)).status_code == 200


async def test_an_algorithm_of_0_2_gets_rollouts_of_agents_old_and_new() -> None:
    class NewAgent(LitAgent[Any]):
        def rollout(self, task: Any, resources: Any, rollout: Rollout) -> float:
            return 0.75

    async with serving() as (server, client):
        await server.update_resources({"prompt": PROMPT})
        old, new = await server.queue_task("2+3", mode="train"), await server.queue_task("1+1")
        assert await server.poll_completed_rollout(old, timeout=0.01) is None
        task = await claim(client)
        triplet = {"prompt": {"token_ids": [1]}, "response": {"token_ids": [2]}, "reward": 0.5}
        await report(client, task["rollout_id"], triplets=[triplet], metadata={"seed": 3})
        runner = LitAgentRunner[Any](OtelTracer(), max_rollouts=1)
        with runner.run_context(agent=NewAgent(), store=server.store):
            await runner.iter()

        first = await server.poll_completed_rollout(old, timeout=20)
        assert first is not None
        assert (first.final_reward, first.metadata) == (0.5, {"seed": 3})
        assert first.triplets is not None
        [call] = first.triplets
        assert (call.prompt["token_ids"], call.response["token_ids"], call.reward) == ([1], [2], 0.5)
        assert await server.get_completed_rollout(old) is None
        [second] = await server.retrieve_completed_rollouts()
        assert (second.rollout_id, second.final_reward) == (new, 0.75)


async def test_an_agent_is_tried_without_a_server() -> None:
    loader = DevTaskLoader(["2+3", "broken"], {"prompt": PROMPT})
    agent = AddingAgent()
    runner = LegacyAgentRunner(agent, loader, OtelTracer(), TracerTraceToTriplet(), max_tasks=2)
    assert await runner.iter_async() == 2
    assert await asyncio.to_thread(runner.iter) == 2
    assert agent.told == ["start 2+3", "end 1.0", "start broken", "end None"] * 2
    assert [(each.rollout_id, each.final_reward) for each in loader.rollouts] == [
        ("local_task_001", 1.0),
        ("local_task_002", None),
    ] * 2
    assert find_final_reward([Span.model_validate(each) for each in loader.rollouts[0].trace or ()]) == 0.25
    with pytest.raises(ValueError, match="has no tasks"):
        DevTaskLoader([], {})


async def test_the_command_serves_the_store_of_a_run() -> None:
    store = InMemoryLightningStore()
    await store.enqueue_rollout("2+3")
    async with LightningStoreServer(store, port=0) as run:
        command = [sys.executable, "-m", "lightning_core", "legacy", "--store", run.url, "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            said, _, endpoint = line.strip().rpartition(" ")
            assert said == f"agents of run {store.run_id} fetch their tasks at"
            task = await AgentLightningClient(endpoint).poll_next_task_async()
            assert task is not None
            assert task.input == "2+3"
        finally:
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 60) == 0
    await until_queued_again(store, task.rollout_id)
