"""Runs beside each other, the end of a store, and what outlives it."""

import asyncio
from inspect import signature
from typing import Any

import pytest

from lightning_core.errors import NotFound, RunEnded, StoreClosed
from lightning_core.store import LightningStore
from lightning_core.store.base import OPERATIONS
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
from lightning_core.types import PromptTemplate


class RunBehaviour(StoreBehaviour):
    """Runs do not see each other; a closed store says so."""

    async def test_runs_share_a_store_and_see_nothing_of_each_other(self, store: LightningStore) -> None:
        other = store.for_run("another-run")
        assert (store.run_id, other.run_id) == ("run-under-test", "another-run")
        resources = await store.add_resources({"p": PromptTemplate(template="a")})
        started = await begin(store, worker_id="w-1")
        await store.add_span(span_of(started))
        await store.enqueue_rollout("queued")
        await store.save_state("apo", 1)

        assert await other.dequeue_rollout() is None
        assert (await other.query_rollouts()).total == (await other.query_workers()).total == 0
        assert (await other.query_resources()).total == 0
        assert await other.get_rollout_by_id(started.rollout_id) is None
        assert await other.get_latest_resources() is None
        assert await other.get_resources_by_id(resources.resources_id) is None
        assert await other.get_worker_by_id("w-1") is None
        assert await other.load_state("apo") is None
        assert (await other.query_spans(started.rollout_id)).total == 0
        with pytest.raises(NotFound, match="another-run"):
            await other.add_span(span_of(started))
        queued = await other.enqueue_rollout("theirs")
        assert queued.resources_id is None
        await other.save_state("apo", 2)
        await other.update_worker("w-1", {"theirs": True})
        assert (await claim(store)).input == "queued"
        assert (await claim(other)).input == "theirs"
        assert await store.load_state("apo") == 1
        worker = present(await store.get_worker_by_id("w-1"))
        assert worker.heartbeat_stats is None
        await other.aclose()

    async def test_runs_with_similar_names_are_as_much_apart_as_any(self, store: LightningStore) -> None:
        mine = store.run_id
        names = [mine[:3], f"{mine}2", *(f"{mine}{mark}x" for mark in ":/|.-"), mine.replace("-", "_"), "run%", "run.*"]
        runs = {name: store.for_run(name) for name in names} | {mine: store}
        for name, run in runs.items():
            started = await run.start_rollout(name, worker_id=name)
            await run.add_span(span_of(started, name))
            await run.enqueue_rollout(name)
            await run.update_resources(name, {"p": PromptTemplate(template=name)})
            for mark in ":/|.-":
                await run.save_state(f"x{mark}state", name)
        for gone in (None, mine, mine[:3]):
            if gone is not None:
                await runs.pop(gone).delete_run()
            for name, run in runs.items():
                rollouts = list(await run.query_rollouts())
                assert [rollout.input for rollout in rollouts] == [name, name]
                assert [span.name for span in await run.query_spans(rollouts[0].rollout_id)] == [name]
                assert [worker.worker_id for worker in await run.query_workers()] == [name]
                assert [each.resources_id for each in await run.query_resources()] == [name]
                latest = present(await run.get_latest_resources())
                assert latest.resources_id == name
                # A key that joins the two would be the same as that of another run's `x:state`.
                assert await run.load_state("state") is None
                assert await run.load_state("x:state") == name
        for name, run in runs.items():
            assert (await claim(run)).input == name
            assert await run.dequeue_rollout() is None

    async def test_a_run_that_has_ended_has_no_more_work_until_it_begins_again(self, store: LightningStore) -> None:
        other = store.for_run("another-run")
        started = await begin(store, worker_id="w-1")
        await store.end_run()
        queued = await store.enqueue_rollout("queued")
        await other.enqueue_rollout("theirs")
        for wait_seconds in (0, None):
            with pytest.raises(RunEnded, match=r"^run run-under-test has ended; there is no more work$"):
                await soon(store.dequeue_rollout("w-2", wait_seconds=wait_seconds))
        with pytest.raises(RunEnded):
            await store.dequeue_many_rollouts(limit=0)
        with pytest.raises(RunEnded):
            await store.for_run(store.run_id).dequeue_rollout()
        assert (await claim(other)).input == "theirs"
        attempt = await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
        assert attempt.status == "succeeded"
        assert await rollout_status(store, queued.rollout_id) == "queuing"

        await store.begin_run()
        assert (await claim(store)).input == "queued"

    async def test_whoever_waits_for_work_hears_that_the_run_ends(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        views = (store, store, store.for_run(store.run_id))
        waiting = [asyncio.create_task(each.dequeue_rollout(wait_seconds=1000)) for each in views]
        await soon(clock.until_waiting(len(views)))
        await store.end_run()
        for each in waiting:
            with pytest.raises(RunEnded, match="run-under-test has ended"):
                await soon(each)

    async def test_a_repeated_word_of_the_end_does_not_end_the_run_that_has_begun_again(
        self, store: LightningStore
    ) -> None:
        await store.end_run(request_id="r-1")
        await store.begin_run(request_id="r-2")
        await store.end_run(request_id="r-1")
        await store.enqueue_rollout("a")
        assert (await claim(store)).input == "a"

    async def test_a_deleted_run_has_not_ended(self, store: LightningStore) -> None:
        await store.end_run()
        await store.for_run(store.run_id).delete_run()
        await store.enqueue_rollout("a")
        assert (await claim(store)).input == "a"

    async def test_a_view_of_the_same_run_shows_the_same(self, store: LightningStore) -> None:
        view = store.for_run("another-run").for_run(store.run_id)
        waiter = asyncio.create_task(view.dequeue_rollout(wait_seconds=None))
        await asyncio.sleep(0)
        rollout = await store.enqueue_rollout("a")
        claimed = present(await soon(waiter))
        assert claimed == await store.get_rollout_by_id(rollout.rollout_id)
        await view.aclose()

    async def test_statistics_count_what_the_run_holds(self, store: LightningStore, clock: FakeClock) -> None:
        other = store.for_run("another-run")
        for of in (store, other):
            assert (await of.statistics())["name"]
            assert set((await totals(of)).values()) == {0}
        await store.add_resources({})
        started = await begin(store, worker_id="w-1")
        await store.start_attempt(started.rollout_id, "w-2")
        await store.add_many_spans([span_of(started) for _ in range(3)])
        await store.enqueue_rollout("a")
        before = (await store.statistics())["uptime"]
        await clock.advance(5)
        assert (await store.statistics())["uptime"] == before + 5
        assert await totals(store) == {
            "total_rollouts": 2,
            "total_attempts": 2,
            "total_spans": 3,
            "total_resources": 1,
            "total_workers": 2,
        }
        assert (await other.statistics())["total_rollouts"] == 0
        await other.aclose()

    async def test_statistics_count_rollouts_by_status_until_they_end(self, store: LightningStore) -> None:
        for _ in range(3):
            await store.enqueue_rollout("a")
        claimed = present(await store.dequeue_rollout())
        assert (await store.statistics())["live_rollouts"] == {"queuing": 2, "preparing": 1}
        await store.add_span(span_of(claimed))
        assert (await store.statistics())["live_rollouts"] == {"queuing": 2, "running": 1}
        await store.update_rollout(claimed.rollout_id, status="requeuing")
        assert (await store.statistics())["live_rollouts"] == {"queuing": 2, "requeuing": 1}
        for rollout in await store.query_rollouts():
            await store.update_rollout(rollout.rollout_id, status="cancelled")
        await store.delete_rollouts([claimed.rollout_id])
        assert (await store.statistics())["live_rollouts"] == {}

    @pytest.mark.parametrize("turns", [None, 0, 1, 2, 4, 8, 16])
    async def test_closing_ends_every_wait(self, store: LightningStore, clock: FakeClock, turns: int | None) -> None:
        started = await begin(store, timeout_seconds=100)
        view = store.for_run("another-run")
        waiters = [
            asyncio.create_task(store.dequeue_rollout(wait_seconds=None)),
            asyncio.create_task(store.dequeue_many_rollouts(limit=2, wait_seconds=30)),
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id])),
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=30)),
            asyncio.create_task(view.dequeue_rollout(wait_seconds=30)),
        ]
        if turns is None:
            await soon(clock.until_waiting(3))
        else:
            await turn(turns)
        await soon(store.aclose())
        outcomes = await soon(asyncio.gather(*waiters, return_exceptions=True))
        assert [type(outcome) for outcome in outcomes] == [StoreClosed] * len(waiters)

    async def test_a_closed_store_refuses_everything(self, store: LightningStore) -> None:
        started = await begin(store)
        view = store.for_run("another-run").for_run("a-third-run")
        await store.aclose()
        await store.aclose()
        arguments: dict[str, Any] = {
            **dict.fromkeys(("input", "reason", "name", "state", "worker_id", "resources_id"), "a"),
            **dict.fromkeys(("rollouts", "spans", "rollout_attempt_ids"), ()),
            "rollout_id": started.rollout_id,
            "attempt_id": started.attempt.attempt_id,
            "rollout_ids": [started.rollout_id],
            "span": span_of(started),
            "resources": {},
        }
        for name in sorted(OPERATIONS - {"aclose", "kept_runs", "add_otel_span"}):
            method = getattr(store, name)
            needed = [each.name for each in signature(method).parameters.values() if each.default is each.empty]
            with pytest.raises(StoreClosed, match="is closed"):
                await method(**{each: arguments[each] for each in needed})
        with pytest.raises(StoreClosed, match="is closed"):
            await view.enqueue_rollout("a")
        with pytest.raises(StoreClosed, match="is closed"):
            store.for_run("another-run")

    async def test_closing_a_view_leaves_the_data_open(self, store: LightningStore) -> None:
        view = store.for_run("another-run")
        inner = view.for_run("a-third-run")
        await view.enqueue_rollout("a")
        await view.aclose()
        await view.aclose()
        with pytest.raises(StoreClosed, match="another-run is closed"):
            await view.dequeue_rollout()
        assert (await store.enqueue_rollout("b")).status == "queuing"
        assert (await inner.enqueue_rollout("c")).status == "queuing"
        assert (await claim(store.for_run("another-run"))).input == "a"
        await inner.aclose()

    @pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
    async def test_what_was_acknowledged_outlives_the_store(
        self, store: LightningStore, clock: FakeClock, killed: bool
    ) -> None:
        resources = await store.add_resources({"p": PromptTemplate(template="a")})
        ended, queued = await begin(store, worker_id="w-1"), await store.enqueue_rollout("queued")
        await store.add_span(span_of(ended))
        await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
        await store.save_state("apo", {"round": 3})
        before = await store.get_rollout_by_id(ended.rollout_id)
        reopened = await (self.reopen_after_kill if killed else self.reopen_store)(store, clock=clock)
        if reopened is None:
            pytest.skip(f"{type(store).__name__} keeps nothing after it is closed: reopen_store returns None")
        try:
            assert await reopened.get_rollout_by_id(ended.rollout_id) == before
            assert await rollout_status(reopened, ended.rollout_id) == "succeeded"
            assert (await reopened.query_spans(ended.rollout_id)).total == 1
            assert await reopened.get_latest_resources() == resources
            assert await reopened.load_state("apo") == {"round": 3}
            assert (await claim(reopened)).rollout_id == queued.rollout_id
        finally:
            await reopened.aclose()
