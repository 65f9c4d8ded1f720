"""What a user of agentlightning 0.3 runs against our server, in that package's own environment; see test_peer.py."""

import asyncio
import sys

import agentlightning as agl
from agentlightning.runner import LitAgentRunner
from agentlightning.store.client_server import LightningStoreClient
from agentlightning.tracer import OtelTracer
from agentlightning.types import EnqueueRolloutRequest, PromptTemplate, RolloutConfig, Span


async def use_client(store):
    assert (await store.statistics())["total_rollouts"] == 0
    assert await store.get_latest_resources() is None
    added = await store.add_resources({"p": PromptTemplate(template="hi {x}", engine="f-string")})
    assert (await store.get_latest_resources()).resources_id == added.resources_id
    await store.update_resources(added.resources_id, {"p": PromptTemplate(template="ho {x}", engine="f-string")})
    assert (await store.get_resources_by_id(added.resources_id)).resources["p"].template == "ho {x}"
    assert await store.get_resources_by_id("rs-none") is None
    assert (await store.query_resources()).total == 1

    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    first = await store.enqueue_rollout({"x": 1}, mode="train", config=config, metadata={"k": 1})
    more = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    await store.update_worker("w-1", {"load": 1})
    assert (await store.get_worker_by_id("w-1")).heartbeat_stats == {"load": 1}
    claimed = await store.dequeue_rollout(worker_id="w-1")
    own = claimed.rollout_id, claimed.attempt.attempt_id
    assert own[0] == first.rollout_id
    number = await store.get_next_span_sequence_id(*own)
    span = Span.from_attributes(
        rollout_id=own[0], attempt_id=own[1], sequence_id=number, attributes={"a": 1, "l": ["x"]}, name="step"
    )
    assert (await store.add_span(span)).sequence_id == number == 1
    assert await store.add_span(span) is None
    assert (await store.query_spans(own[0], "latest", name_contains="st")).total == 1
    assert (await store.get_latest_attempt(own[0])).status == "running"
    await store.update_attempt(*own, status="failed")
    assert (await store.get_rollout_by_id(own[0])).status == "requeuing"
    assert (await store.start_attempt(own[0], "w-2")).attempt.sequence_id == 2
    await store.update_attempt(own[0], "latest", status="succeeded", metadata={"ok": 1})
    ended = await store.wait_for_rollouts(rollout_ids=[own[0]], timeout=0)
    assert [item.status for item in ended] == ["succeeded"]
    assert len(await store.dequeue_many_rollouts(limit=5)) == 3
    assert await store.dequeue_rollout() is None
    await store.update_rollout(more[0].rollout_id, status="cancelled", metadata=None)
    assert (await store.query_rollouts(status_in=["cancelled", "succeeded"], sort_by="start_time")).total == 2
    assert (await store.query_attempts(own[0])).total == 2
    assert (await store.query_workers()).total == 2
    assert (await store.start_rollout({"x": 2}, worker_id="w-3")).status == "preparing"


@agl.rollout
def agent(task, prompt_template):
    agl.emit_message("hello")
    return float(task["x"])


async def run_runner(store):
    ids = [(await store.enqueue_rollout({"x": number}, mode="train")).rollout_id for number in range(5)]
    runner = LitAgentRunner(OtelTracer(), max_rollouts=5, poll_interval=0.1)
    runner.init(agent)
    runner.init_worker(0, store)
    await runner.iter()
    runner.teardown_worker(0)
    runner.teardown()
    found = await store.query_rollouts(rollout_id_in=ids)
    assert [item.status for item in found.items] == ["succeeded"] * 5
    for number, rollout_id in enumerate(ids):
        spans = (await store.query_spans(rollout_id)).items
        assert [item.name for item in spans] == ["agentlightning.message", "agentlightning.annotation"]
        assert spans[-1].attributes["agentlightning.reward.0.value"] == number


async def main():
    store = LightningStoreClient(sys.argv[1])
    await use_client(store)
    await run_runner(store)
    await store.close()


asyncio.run(main())
