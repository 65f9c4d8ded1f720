"""Deleting rollouts and whole runs."""

import asyncio
import json

import pytest

from lightning_core.emitter import emit_reward, find_final_reward
from lightning_core.errors import InvalidRequest, InvalidTransition, NotFound
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.backend import StoreBackend
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    StoreBehaviour,
    begin,
    claim,
    present,
    rollout_status,
    soon,
    span_of,
    totals,
    turn,
)
from lightning_core.types import PromptTemplate, Span
from lightning_core.types.span import Event, OtelResource, TraceStatus


def require_replace_spans(store: LightningStore) -> None:
    """Skip the test when the store's backend has the default method of the port, which refuses."""
    if isinstance(store, StoreFacade) and type(store.backend).replace_spans is StoreBackend.replace_spans:
        pytest.skip(f"{type(store.backend).__name__} has no method replace_spans, so it cannot drop content")


class DeletionBehaviour(StoreBehaviour):
    """What is deleted is gone, and nothing else is."""

    async def test_deleted_rollouts_are_gone_with_what_belongs_to_them(self, store: LightningStore) -> None:
        kept, gone = await begin(store, "kept"), await begin(store, "gone")
        for started in (kept, gone):
            await store.add_many_spans([span_of(started) for _ in range(3)])
            await store.start_attempt(started.rollout_id)
            await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        before = await totals(store)
        assert await store.delete_rollouts([gone.rollout_id]) == 1
        assert await store.get_rollout_by_id(gone.rollout_id) is None
        assert [item.input for item in await store.query_rollouts()] == ["kept"]
        assert (await store.query_rollouts(rollout_id_in=[gone.rollout_id])).total == 0
        assert (await store.query_spans(gone.rollout_id)).total == 0
        assert (await store.query_attempts(gone.rollout_id)).total == 0
        assert await store.get_latest_attempt(gone.rollout_id) is None
        after = await totals(store)
        assert {key: before[key] - after[key] for key in before if before[key] != after[key]} == {
            "total_rollouts": 1,
            "total_attempts": 2,
            "total_spans": 3,
        }
        assert (await store.query_spans(kept.rollout_id)).total == 3

    async def test_what_does_not_exist_is_skipped_so_that_a_deletion_can_be_repeated(
        self, store: LightningStore
    ) -> None:
        ids = [(await begin(store, number)).rollout_id for number in range(3)]
        for rollout_id in ids:
            await store.update_rollout(rollout_id, status="cancelled")
        assert await store.delete_rollouts([*ids[:2], ids[0], "ro-none"]) == 2
        assert await store.delete_rollouts(ids[:2]) == 0
        assert await store.delete_rollouts([]) == 0
        with pytest.raises(InvalidRequest, match="rollout_ids is 'ro-1'; it takes a sequence of ids"):
            await store.delete_rollouts("ro-1")
        assert await store.delete_rollouts(ids) == 1

    async def test_none_is_deleted_when_one_has_not_ended(self, store: LightningStore) -> None:
        over, queued, running = await begin(store), await store.enqueue_rollout("a"), await begin(store)
        await store.update_rollout(over.rollout_id, status="cancelled")
        await store.add_span(span_of(running))
        for live, status in ((queued, "queuing"), (running, "running")):
            with pytest.raises(InvalidTransition, match=f"{live.rollout_id} is '{status}'; cancel it before"):
                await store.delete_rollouts([over.rollout_id, live.rollout_id])
        assert (await store.query_rollouts()).total == 3
        assert (await claim(store)).rollout_id == queued.rollout_id

    async def test_dropped_content_leaves_numbers_rewards_and_names(self, store: LightningStore) -> None:
        require_replace_spans(store)
        started, other = await begin(store), await begin(store)
        kept = {"gen_ai.request.model": "m-1", "gen_ai.usage.input_tokens": 7, "stream": True}
        said = {"gen_ai.prompt.0.content": "a secret", "ids": [1, 2], "tool": {"arguments": "a secret"}}
        reward = emit_reward(0.5, propagate=False).attributes
        event = Event(name="exception", attributes={"exception.message": "a secret"}, timestamp=1.0)
        failed = TraceStatus(status_code="ERROR", description="a secret")
        for of in (started, other):
            plain = span_of(of, "call", attributes={**kept, **said}, start_time=1.0)
            span = plain.model_copy(update={"events": [event], "status": failed})
            await store.add_many_spans([span, span_of(of, attributes=reward)])
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        with pytest.raises(InvalidTransition, match=f"{other.rollout_id} is 'running'; cancel it before its content"):
            await store.drop_content([started.rollout_id, other.rollout_id])
        before = await store.query_spans(started.rollout_id)
        assert before[0].attributes == {**kept, **said}
        for dropped in (1, 0):
            assert await store.drop_content([started.rollout_id, "ro-none"]) == dropped
            call, rewarded = await store.query_spans(started.rollout_id)
            assert (call.attributes, rewarded.attributes) == (kept, reward)
            assert (call.events[0].name, dict(call.events[0].attributes)) == ("exception", {})
            assert (call.status.status_code, call.status.description) == ("ERROR", None)
            left = {"attributes", "events", "status"}
            assert call.model_dump(exclude=left) == before[0].model_dump(exclude=left)
        assert (await store.query_spans(other.rollout_id))[0].attributes == {**kept, **said}
        assert await store.add_many_spans([before[0]]) == []  # it is there

    async def test_rewards_of_agentops_outlive_dropped_content(self, store: LightningStore) -> None:
        require_replace_spans(store)
        started = await begin(store)
        output = json.dumps({"type": "reward", "value": 0.7, "said": "a secret"})
        attributes = {
            "agentops.task.output": output,
            "agentlightning.reward.0.reason": "a secret",
            "gen_ai.tool.name": "weather",
        }
        resource = OtelResource(attributes={"service.name": "agent", "process.command_args": "a secret"})
        await store.add_span(span_of(started, attributes=attributes, resource=resource))
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.drop_content([started.rollout_id])
        (span,) = await store.query_spans(started.rollout_id)
        assert find_final_reward([span]) == 0.7
        assert span.attributes["gen_ai.tool.name"] == "weather"
        assert span.resource.attributes == {"service.name": "agent"}
        assert "a secret" not in span.model_dump_json()

    async def test_a_rollout_whose_time_is_over_can_be_deleted(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store, timeout_seconds=5)
        await clock.advance(5)
        assert await store.delete_rollouts([started.rollout_id]) == 1

    async def test_a_deleted_rollout_leaves_nothing_in_the_queue_nor_among_the_deadlines(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        queued, timed = await store.enqueue_rollout("a"), await begin(store, timeout_seconds=5)
        for rollout in (queued, timed):
            await store.update_rollout(rollout.rollout_id, status="cancelled")
        assert await store.delete_rollouts([queued.rollout_id, timed.rollout_id]) == 2
        await store.enqueue_rollout("b")
        await clock.advance(5)
        assert (await claim(store)).input == "b"
        assert await store.dequeue_rollout() is None

    async def test_what_comes_late_for_a_deleted_rollout_is_refused(self, store: LightningStore) -> None:
        started = await begin(store, worker_id="w-1")
        rollout_id, attempt_id = started.rollout_id, started.attempt.attempt_id
        await store.add_span(span_of(started))
        await store.update_rollout(rollout_id, status="cancelled")
        await store.delete_rollouts([rollout_id])
        for call in (
            store.add_span(span_of(started)),
            store.update_attempt(rollout_id, attempt_id, status="succeeded"),
            store.report_fault(rollout_id, attempt_id, "the proxy died"),
            store.update_rollout(rollout_id, metadata={}),
            store.start_attempt(rollout_id),
            store.get_next_span_sequence_id(rollout_id, attempt_id),
        ):
            with pytest.raises(NotFound, match=f"no rollout '{rollout_id}'"):
                await soon(call)
        other = await begin(store)
        with pytest.raises(NotFound, match=rollout_id):
            await store.add_many_spans([span_of(other), span_of(started)])
        assert await rollout_status(store, other.rollout_id) == "preparing"
        assert (await store.update_worker("w-1")).worker_id == "w-1"
        counted = await totals(store)
        assert (counted["total_rollouts"], counted["total_attempts"], counted["total_spans"]) == (1, 1, 0)

    @pytest.mark.parametrize("gone", [0, 1], ids=["the ended one", "another view deletes the run"])
    async def test_what_is_deleted_is_not_waited_for_any_more(
        self, store: LightningStore, clock: FakeClock, gone: int
    ) -> None:
        over, running = await begin(store, "over"), await begin(store, "running", timeout_seconds=100)
        await store.update_rollout(over.rollout_id, status="succeeded")
        ids = [over.rollout_id, running.rollout_id]
        waiters = [
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids)),
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=50)),
        ]
        await soon(clock.until_waiting(2))
        if gone == 0:
            await store.delete_rollouts(ids[:1])
        else:
            await store.for_run(store.run_id).delete_run()
            for waiter in waiters:
                assert list(await soon(waiter)) == []
            return
        await turn(5)
        assert not any(waiter.done() for waiter in waiters)
        await store.update_rollout(ids[1], status="failed")
        for waiter in waiters:
            assert [item.rollout_id for item in await soon(waiter)] == ids[1:]

    async def test_a_deleted_run_is_empty_and_can_be_used_again(self, store: LightningStore, clock: FakeClock) -> None:
        other = store.for_run("another-run")
        for of in (store, other):
            await of.add_resources({"p": PromptTemplate(template="a")})
            await of.update_worker("w-1")
            await of.save_state("apo", {"round": 1})
            started = await begin(of, worker_id="w-1", timeout_seconds=50)
            await of.add_span(span_of(started))
            await of.enqueue_rollout("queued")
        kept = await totals(other)
        waits_for_work = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
        assert await soon(waits_for_work) is not None  # the queued one
        waits_for_work = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
        await soon(clock.until_waiting())
        await store.delete_run()
        await store.delete_run()
        assert set((await totals(store)).values()) == {0}
        assert await store.load_state("apo") is None
        assert await store.get_latest_resources() is None
        assert await store.get_worker_by_id("w-1") is None
        assert (await store.query_resources()).total == (await store.query_workers()).total == 0
        assert await totals(other) == kept
        assert await other.load_state("apo") == {"round": 1}
        await clock.advance(100)
        again = await store.enqueue_rollout("again")
        claimed = present(await soon(waits_for_work))
        assert (claimed.rollout_id, claimed.resources_id) == (again.rollout_id, None)
        assert (await claim(other)).input == "queued"
        await other.aclose()

    async def test_rollouts_are_deleted_in_one_run_only(self, store: LightningStore) -> None:
        other = store.for_run("another-run")
        started = await begin(store)
        await store.update_rollout(started.rollout_id, status="cancelled")
        assert await other.delete_rollouts([started.rollout_id]) == 0
        assert (await store.query_rollouts()).total == 1
        await other.aclose()

    @pytest.mark.parametrize("turns", range(0, 10, 2))
    @pytest.mark.parametrize("whole_run", [True, False], ids=["the run", "its rollout"])
    async def test_no_span_outlives_what_is_deleted_while_it_arrives(
        self, store: LightningStore, whole_run: bool, turns: int
    ) -> None:
        started = await begin(store)
        await store.update_rollout(started.rollout_id, status="cancelled")
        arrival = asyncio.create_task(store.add_span(span_of(started)))
        await turn(turns)  # the deletion begins at any point of the arrival
        await (store.delete_run() if whole_run else store.delete_rollouts([started.rollout_id]))
        outcome = (await soon(asyncio.gather(arrival, return_exceptions=True)))[0]
        assert isinstance(outcome, NotFound | Span)
        assert set((await totals(store)).values()) == {0}
