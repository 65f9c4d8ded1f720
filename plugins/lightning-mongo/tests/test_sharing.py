"""Several stores over one partition, as several processes have them; and partitions beside each other."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import Any

import pytest
from lightning_mongo import MongoBackend, MongoLightningStore, Settings
from lightning_mongo.testing import Mongod
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from lightning_core.errors import NotFound, RunEnded
from lightning_core.lifecycle import RolloutRecord, begin_attempt
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.run_end import note_served, served_run
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig, Span

PATIENCE_SECONDS = 20.0


async def soon(awaitable: Awaitable[Any]) -> Any:
    """Return what it gives, or fail instead of hanging."""
    return await asyncio.wait_for(awaitable, PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def stores(mongod: Mongod, partition: str, count: int = 2, **options: Any) -> AsyncIterator[list[LightningStore]]:
    """Open stores of one run that know nothing of each other."""
    opened = [
        MongoLightningStore(mongod.uri, partition_id=partition, run_id="run-1", poll_milliseconds=10, **options)
        for _ in range(count)
    ]
    try:
        for store in opened:
            await store.statistics()  # it is open, and hears of everything from now on
        yield list(opened)
    finally:
        for store in opened:
            await store.aclose()


async def called_only(store: Any) -> asyncio.Task[Any]:
    """Return a claim that waits, and has looked since it began to: only a call can end that."""
    claim, looked = store._backend.claim, asyncio.Event()

    async def counted(*arguments: Any, **options: Any) -> Any:
        got = await claim(*arguments, **options)
        looked.set()
        return got

    store._backend.claim = counted
    waiting = asyncio.create_task(store.dequeue_rollout("w", wait_seconds=None))
    await soon(looked.wait())
    store._backend.claim = claim
    return waiting


async def _add_until_gone(store: LightningStore, rollout: AttemptedRollout, arrived: asyncio.Semaphore) -> None:
    """Add spans, one by one, until the rollout has been deleted."""
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with contextlib.suppress(NotFound):
        while True:
            await store.add_span(Span.from_attributes(attributes={}, name="call", **ids))
            arrived.release()


async def test_no_rollout_is_handed_out_twice(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition, 3) as several:
        queued = await several[0].enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(300)])
        claimed: list[str] = []

        async def work(store: LightningStore, name: str) -> None:
            number = 0
            while got := await store.dequeue_many_rollouts(limit=3, worker_id=name, request_id=f"{name}-{number}"):
                claimed.extend(each.rollout_id for each in got)
                number += 1

        await asyncio.gather(*(work(store, f"w-{s}-{n}") for s, store in enumerate(several) for n in range(6)))
        assert sorted(claimed) == sorted(each.rollout_id for each in queued)
        assert (await several[0].statistics())["total_attempts"] == 300


async def test_a_claim_that_loses_some_to_others_goes_on_with_the_rest(mongod: Mongod, partition: str) -> None:
    backend = MongoBackend(Settings(mongod.uri, partition_id=partition))
    store = StoreFacade(backend, run_id="run-1")
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(4)])
    in_the_way = {queued[1].rollout_id, queued[2].rollout_id}

    with MongoClient[Any](mongod.uri) as client:

        def begin(record: RolloutRecord) -> RolloutRecord:
            if record.rollout.rollout_id in in_the_way:  # somebody else writes it just now
                in_the_way.remove(record.rollout.rollout_id)
                id = {"run": f"{partition}/run-1", "id": record.rollout.rollout_id}
                client["lightning"]["lightning.rollouts"].update_one({"_id": id}, {"$inc": {"revision": 1}})
            return begin_attempt(record, 1.0, attempt_id=f"at-{record.rollout.input}", worker_id="w")

        claimed = await soon(backend.claim("run-1", 3, begin, request_id="r"))
        assert sorted(each.rollout.input for each in claimed) == [0, 1, 2]
        again = await soon(backend.claim("run-1", 3, begin, request_id="r"))
        assert sorted(each.rollout.input for each in again) == [0, 1, 2]
        assert [each.rollout.input for each in await backend.claim("run-1", 3, begin, request_id="other")] == [3]
    await store.aclose()


async def test_a_request_that_two_servers_carry_out_together_claims_once(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition, 2) as (one, other):
        await one.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(100)])
        for number in range(20):
            request = {"limit": 2, "worker_id": "w", "request_id": f"claim-{number}"}
            first, second = await asyncio.gather(
                one.dequeue_many_rollouts(**request), other.dequeue_many_rollouts(**request)
            )
            again = await other.dequeue_many_rollouts(**request)
            assert len(again) == 2
            given = {each.rollout_id for each in again}
            assert {each.rollout_id for each in (*first, *second)} <= given
        assert (await one.statistics())["total_attempts"] == 40


async def test_work_from_another_store_is_heard_of(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition) as (one, other):
        waiting = [asyncio.create_task(one.dequeue_rollout("w", wait_seconds=None)) for _ in range(3)]
        for number in range(3):
            await other.enqueue_rollout(number)
        claimed = await soon(asyncio.gather(*waiting))
        assert sorted(each.input for each in claimed) == [0, 1, 2]


async def test_work_is_heard_of_in_any_time_zone(
    standalone: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XYZ+5")
    time.tzset()
    try:
        async with stores(standalone, partition) as (one, other):
            waiting = await called_only(one)
            await other.enqueue_rollout("a")
            assert (await soon(waiting)).input == "a"
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_results_and_deletions_of_another_store_are_heard_of(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition) as (one, other):
        first, second = [await other.start_rollout(n) for n in range(2)]
        result = asyncio.create_task(one.wait_for_rollouts(rollout_ids=[first.rollout_id]))
        rest = asyncio.create_task(one.wait_for_rollouts(rollout_ids=[first.rollout_id, second.rollout_id]))
        await asyncio.sleep(0)
        await other.update_attempt(first.rollout_id, "latest", status="succeeded")
        assert [each.status for each in await soon(result)] == ["succeeded"]
        await other.delete_rollouts([first.rollout_id])
        await other.update_attempt(second.rollout_id, "latest", status="failed")
        assert [each.rollout_id for each in await soon(rest)] == [second.rollout_id]


async def test_the_end_of_a_run_is_heard_of_everywhere(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition) as (one, other):
        waiting = [asyncio.create_task(one.dequeue_rollout(f"w-{n}", wait_seconds=None)) for n in range(3)]
        await asyncio.sleep(0)
        await other.end_run()
        for each in waiting:
            with pytest.raises(RunEnded):
                await soon(each)
        await other.begin_run()
        await other.enqueue_rollout("a")
        assert await one.dequeue_rollout() is not None


async def test_a_deadline_of_another_store_is_kept_when_that_store_is_gone(mongod: Mongod, partition: str) -> None:
    clock = FakeClock()
    async with stores(mongod, partition, 1, clock=clock) as (one,):
        assert await one.dequeue_rollout() is None  # it has looked: nothing is due
        async with stores(mongod, partition, 1, clock=clock) as (other,):
            started = await other.start_rollout("a", config=RolloutConfig(timeout_seconds=5))
        await clock.advance(6)

        ended = await soon(one.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        assert [each.status for each in ended] == ["failed"]


@pytest.mark.parametrize("many", [False, True], ids=["one", "several"])
async def test_a_waiter_hears_of_a_write_whose_answer_was_lost(
    mongod: Mongod, partition: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(mongod, partition, 1) as (store,):
        database: Any = store._backend._database  # type: ignore[attr-defined]
        carried_out = {"bulk_write": database.bulk_write, "as_one": database.as_one}
        lost = set()

        async def losing(name: str, *arguments: Any, **options: Any) -> Any:
            answer = await carried_out[name](*arguments, **options)
            if name == "as_one":  # the driver repeats a transaction whose commit was not answered
                return await carried_out[name](*arguments, **options)
            if arguments[0] == "lightning.rollouts" and options.get("session") is None and not lost:
                lost.add(name)
                raise AutoReconnect("the answer is lost")
            return answer

        waiting = await called_only(store)
        for name in carried_out:
            monkeypatch.setattr(database, name, partial(losing, name))
        if many:
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(2)])
        else:
            await store.enqueue_rollout(0)
        assert (await soon(waiting)).input == 0
        monkeypatch.undo()


async def test_a_clock_that_is_set_deafens_nobody(
    standalone: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(standalone, partition) as (one, other):
        now = time.time
        monkeypatch.setattr("time.time", lambda: now() + 3600)
        news: Any = one._backend._news  # type: ignore[attr-defined]
        look, looks = news._look, threading.Semaphore(0)

        async def counted(since: Any) -> Any:
            newest = await look(since)
            looks.release()
            return newest

        monkeypatch.setattr(news, "_look", counted)
        waiting = await called_only(one)
        for _ in range(3):  # the first may have begun before the clock was set
            assert await asyncio.to_thread(looks.acquire, timeout=PATIENCE_SECONDS)
        await other.enqueue_rollout("a")
        assert (await soon(waiting)).input == "a"


async def test_an_error_while_news_are_told_ends_nothing(
    mongod: Mongod, partition: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stores(mongod, partition) as (one, other):
        news: Any = one._backend._news  # type: ignore[attr-defined]
        tell, tells, told_again = news._tell, [], threading.Event()

        def failing_once(*change: Any) -> None:
            tells.append(change)
            if len(tells) == 1:
                raise ValueError("cannot be told")
            tell(*change)
            told_again.set()

        monkeypatch.setattr(news, "_tell", failing_once)
        waiting = await called_only(one)
        await other.enqueue_rollout("a")
        assert await asyncio.to_thread(told_again.wait, PATIENCE_SECONDS)
        assert (await soon(waiting)).input == "a"
    assert tells[0] == tells[1]
    [record] = [each for each in caplog.records if each.name == "lightning_mongo.changes"]
    assert record.getMessage().startswith("lightning.news_interrupted address=mongodb://127.0.0.1")
    assert "cannot be told" in caplog.text


async def test_stores_number_the_spans_of_an_attempt_together(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition) as (one, other):
        started = await one.start_rollout("a")
        ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}

        async def add(store: LightningStore, name: str) -> None:
            for number in range(15):
                span = Span.from_attributes(attributes={}, name=name, span_id=f"{name}{number}", **ids)
                assert await store.add_span(span) is not None
                assert await store.add_span(span) is None

        await asyncio.gather(add(one, "a"), add(other, "b"), add(one, "c"))
        spans = await other.query_spans(started.rollout_id)
        assert len(spans) == 45
        assert len({span.sequence_id for span in spans}) == 45


async def test_no_span_outlives_what_another_store_deletes(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition) as (writer, deleter):
        for number in range(40):
            rollout = await writer.start_rollout("task")
            await writer.update_rollout(rollout.rollout_id, status="cancelled")
            arrived = asyncio.Semaphore(0)
            arrivals = [asyncio.create_task(_add_until_gone(writer, rollout, arrived)) for _ in range(3)]
            for _ in range(number % 8):
                await arrived.acquire()
            if number % 2:
                await deleter.delete_run()
            else:
                await deleter.delete_rollouts([rollout.rollout_id])
            await soon(asyncio.gather(*arrivals))
            assert (await deleter.statistics())["total_spans"] == 0


async def test_what_belongs_together_is_one_transaction_of_a_replica_set(replica_set: Mongod, partition: str) -> None:
    with MongoClient[Any](replica_set.uri) as client:

        def committed() -> int:
            return int(client.admin.command("serverStatus")["transactions"]["totalCommitted"])

        async with stores(replica_set, partition, 1) as (store,):
            before = committed()
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(2)])
            assert committed() == before + 1
            started = await store.start_rollout("a")
            ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
            await store.add_many_spans([Span.from_attributes(attributes={}, **ids) for _ in range(2)])
            assert committed() == before + 2


async def test_partitions_of_one_database_do_not_see_each_other(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition, 1) as (mine,), stores(mongod, f"{partition}0", 1) as (theirs,):
        await mine.enqueue_rollout("mine")
        await mine.save_state("apo", 1)
        assert await theirs.dequeue_rollout() is None
        assert await theirs.load_state("apo") is None
        assert (await theirs.kept_runs(), await mine.kept_runs()) == ([], ["run-1"])
        await theirs.enqueue_rollout("theirs")
        await theirs.delete_run()
        assert (await mine.statistics())["total_rollouts"] == 1


async def test_a_restart_with_the_same_partition_goes_on_with_its_run(mongod: Mongod, partition: str) -> None:
    def opened() -> LightningStore:
        return MongoLightningStore(mongod.uri, partition_id=partition)

    first = opened()
    await note_served(first)
    await first.enqueue_rollout("a")
    await first.aclose()
    second = opened()
    served, goes_on = await served_run(second)
    assert (served.run_id, goes_on) == (first.run_id, True)
    claimed = await served.dequeue_rollout()
    assert claimed is not None
    assert claimed.input == "a"
    await served.end_run()
    assert await served_run(second) == (second, False)
    await second.aclose()


async def test_runs_are_kept_in_the_order_of_their_beginning(mongod: Mongod, partition: str) -> None:
    async with stores(mongod, partition, 1) as (store,):
        for name in ("z/with a slash", "b", "a"):
            await store.for_run(name).enqueue_rollout(1)
        await store.for_run("only state").save_state("x", 1)
        assert await store.kept_runs() == ["z/with a slash", "b", "a", "only state"]


async def test_a_store_serves_any_number_of_event_loops(mongod: Mongod, partition: str) -> None:
    backend = MongoBackend(Settings(mongod.uri, partition_id=partition))
    assert await asyncio.to_thread(lambda: asyncio.run(backend.kept_runs())) == []
    assert await backend.kept_runs() == []
    await backend.aclose()
