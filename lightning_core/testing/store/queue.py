"""Enqueue and claim: order, exclusiveness, and notified waits for work."""

import asyncio
import threading
from itertools import chain
from typing import Any

import pytest

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    StoreBehaviour,
    attempt_statuses,
    claim,
    present,
    require,
    soon,
    span_of,
    turn,
)
from lightning_core.types import EnqueueRolloutRequest, RolloutConfig

VALUES: list[Any] = [
    *(None, True, 1.0, -0.0, 10**30, float("inf"), "", "naïve \0 \u2028 🙂", [[1, "1", 1.5, False]]),
    *({"": [], "a.b": {"$set": {"$where": None}}, "$": 1},),
]
"""What JSON holds, as Python reads and writes it."""

ROLLOUTS = 1_000
WORKERS = 16
BATCH = 200


class QueueBehaviour(StoreBehaviour):
    """Rollouts are queued in order, and each is claimed once."""

    async def test_an_enqueued_rollout_says_what_it_was_given(self, store: LightningStore, clock: FakeClock) -> None:
        resources = await store.add_resources({})
        config = RolloutConfig(timeout_seconds=5, max_attempts=3, retry_condition=["failed"])
        rollout = await store.enqueue_rollout(
            {"question": 1}, mode="val", resources_id=resources.resources_id, config=config, metadata={"k": [1]}
        )
        assert rollout.status == "queuing"
        assert rollout.input == {"question": 1}
        assert (rollout.mode, rollout.resources_id) == ("val", resources.resources_id)
        assert (rollout.config, rollout.metadata) == (config, {"k": [1]})
        assert (rollout.start_time, rollout.end_time) == (clock.now(), None)
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout

    @pytest.mark.parametrize("value", VALUES, ids=repr)
    async def test_a_json_value_comes_back_as_it_was(self, store: LightningStore, clock: FakeClock, value: Any) -> None:
        queued = await store.enqueue_rollout(value, metadata={"kept": value})
        await store.update_worker("w.$", {"kept": value})
        reopened = await self.reopen_store(store, clock=clock) or store
        found = present(await reopened.get_rollout_by_id(queued.rollout_id))
        worker = present(await reopened.get_worker_by_id("w.$"))
        kept = found.input, found.metadata, worker.heartbeat_stats
        assert str(kept) == str((value, {"kept": value}, {"kept": value}))
        await reopened.aclose()

    @pytest.mark.parametrize(
        ("requests", "message"),
        [
            (None, "rollouts is None; it takes a sequence of EnqueueRolloutRequest"),
            ("ab", "rollouts is 'ab'; it takes a sequence of EnqueueRolloutRequest"),
            ([{"input": "a"}, 1], r"rollouts\[1\] is 1"),
            ([{"inputs": "a"}], r"rollouts\[0\]\.input"),
            ([{"input": threading.Lock()}], "lock"),
            ([{"input": "a", "metadata": {"b": threading.Lock()}}], "lock"),
        ],
        ids=["nothing", "text", "number", "field", "input", "metadata"],
    )
    async def test_what_is_no_request_is_refused_and_nothing_is_queued(
        self, store: LightningStore, requests: Any, message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            await store.enqueue_many_rollouts(requests)
        assert (await store.query_rollouts()).total == 0

    async def test_rollouts_are_claimed_first_in_first_out(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("a", mode="train")
        rest = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input="b", mode="val"), EnqueueRolloutRequest(input="c")]
        )
        claimed = [await claim(store) for _ in range(3)]
        assert [item.rollout_id for item in claimed] == [first.rollout_id, *(item.rollout_id for item in rest)]
        assert await store.dequeue_rollout() is None

    async def test_a_claim_begins_an_attempt(self, store: LightningStore, clock: FakeClock) -> None:
        await store.enqueue_rollout("a")
        await clock.advance(7)
        claimed = await claim(store, "w-1")
        assert claimed.status == claimed.attempt.status == "preparing"
        assert (claimed.attempt.sequence_id, claimed.attempt.worker_id) == (1, "w-1")
        assert (claimed.attempt.start_time, claimed.attempt.end_time) == (clock.now(), None)
        assert await store.get_rollout_by_id(claimed.rollout_id) == claimed
        assert await store.get_latest_attempt(claimed.rollout_id) == claimed.attempt

    async def test_many_are_claimed_up_to_the_limit_oldest_first(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(5)])
        assert [item.input for item in await store.dequeue_many_rollouts(limit=3)] == [0, 1, 2]
        assert [item.input for item in await store.dequeue_many_rollouts(limit=3)] == [3, 4]
        assert list(await store.dequeue_many_rollouts(limit=3)) == []

    async def test_nothing_is_enqueued_when_one_request_is_refused(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input="a"), {"input": "b", "mode": "exam"}]
        with pytest.raises(InvalidRequest, match=r"rollouts\[1\]\.mode is 'exam'"):
            await store.enqueue_many_rollouts(requests)  # type: ignore[arg-type]
        assert await store.dequeue_rollout() is None
        assert list(await store.enqueue_many_rollouts([])) == []

    async def test_resources_may_come_after_the_rollouts_that_name_them(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a", resources_id="rs-later")
        started = await store.start_rollout("a", resources_id="rs-later")
        assert queued.resources_id == started.resources_id == "rs-later"
        assert (await store.update_rollout(queued.rollout_id, resources_id="rs-last")).resources_id == "rs-last"
        assert (await claim(store)).resources_id == "rs-last"

    async def test_a_started_rollout_passes_the_queue(self, store: LightningStore) -> None:
        await store.enqueue_rollout("queued")
        started = await store.start_rollout("now", mode="test", metadata={"a": 1}, worker_id="w-1")
        assert started.status == started.attempt.status == "preparing"
        assert (started.input, started.mode, started.metadata) == ("now", "test", {"a": 1})
        assert (started.attempt.sequence_id, started.attempt.worker_id) == (1, "w-1")
        assert (await claim(store)).input == "queued"
        assert await store.dequeue_rollout() is None

    async def test_a_rollout_that_is_queued_again_stands_at_the_tail(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        again = await claim(store)
        await store.update_rollout(again.rollout_id, status="requeuing")
        assert [(await claim(store)).input for _ in range(3)] == [1, 2, 0]
        assert await attempt_statuses(store, again.rollout_id) == ["preparing", "preparing"]

    async def test_a_rollout_is_in_the_queue_once_however_often_it_is_queued(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("a")
        for status in ("queuing", "requeuing", "requeuing", "queuing"):
            await store.update_rollout(rollout.rollout_id, status=status)
        assert (await claim(store)).rollout_id == rollout.rollout_id
        assert await store.dequeue_rollout() is None

    async def test_a_cancelled_rollout_leaves_the_queue(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("a")
        await store.enqueue_rollout("b")
        await store.update_rollout(first.rollout_id, status="cancelled")
        assert (await claim(store)).input == "b"
        assert await store.dequeue_rollout() is None

    async def test_a_started_attempt_takes_the_rollout_out_of_the_queue(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("a")
        started = await store.start_attempt(rollout.rollout_id, "w-1")
        assert (started.status, started.attempt.sequence_id, started.attempt.worker_id) == ("preparing", 1, "w-1")
        assert await store.dequeue_rollout() is None

    async def test_no_rollout_is_claimed_twice_by_threads(self, store: LightningStore) -> None:
        require(store, "thread_safe")
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(120)])

        def worker(number: int) -> list[int]:
            async def work() -> list[int]:
                mine = []
                while (claimed := await store.dequeue_rollout(f"w-{number}")) is not None:
                    mine.append(claimed.input)
                    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
                return mine

            return asyncio.run(work())

        claimed = await soon(asyncio.gather(*(asyncio.to_thread(worker, number) for number in range(4))))
        assert sorted(chain.from_iterable(claimed)) == list(range(120))
        assert (await store.query_rollouts(status_in=["succeeded"])).total == 120

    async def test_a_waiting_claim_gives_up_at_its_time(self, store: LightningStore, clock: FakeClock) -> None:
        waiter = asyncio.create_task(store.dequeue_many_rollouts(limit=2, wait_seconds=30))
        await soon(clock.until_waiting())
        await clock.advance(29.9)
        assert not waiter.done()
        await clock.advance(0.1)
        assert list(await soon(waiter)) == []
        await store.enqueue_rollout("a")
        assert (await claim(store)).input == "a"

    async def test_many_waiters_share_what_comes_and_none_is_forgotten(self, store: LightningStore) -> None:
        waiters = [asyncio.create_task(store.dequeue_rollout(wait_seconds=None)) for _ in range(20)]
        await asyncio.sleep(0)
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(10)])
        for i in range(10, 20):
            await store.enqueue_rollout(i)
        claimed = await soon(asyncio.gather(*waiters))
        assert sorted(item.input for item in claimed if item is not None) == list(range(20))

    @pytest.mark.parametrize("turns", range(0, 48, 6))
    async def test_a_cancelled_waiter_hands_its_call_on(self, store: LightningStore, turns: int) -> None:
        first = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
        await turn(20)
        second = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
        await turn(20)
        await store.enqueue_rollout("a")
        await turn(turns)  # the first has been called, and is cancelled at any point of what it does then
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        if (await store.query_rollouts(status_in=["queuing"])).total:
            assert await soon(second) is not None
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    async def test_each_of_a_thousand_rollouts_is_done_once(self, store: LightningStore) -> None:
        queued = [
            rollout.rollout_id
            for first in range(0, ROLLOUTS, BATCH)
            for rollout in await store.enqueue_many_rollouts(
                [EnqueueRolloutRequest(input=index) for index in range(first, first + BATCH)]
            )
        ]
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=queued))
        claims: list[list[str]] = []

        async def work(worker_id: str) -> None:
            while batch := await store.dequeue_many_rollouts(limit=25, worker_id=worker_id):
                claims.append([claimed.rollout_id for claimed in batch])
                await store.add_many_spans([span_of(claimed, str(claimed.input)) for claimed in batch])
                for claimed in batch:
                    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

        await asyncio.gather(*(work(f"w-{number}") for number in range(WORKERS)))

        place = {rollout_id: number for number, rollout_id in enumerate(queued)}
        assert len(place) == ROLLOUTS
        assert sorted(rollout_id for batch in claims for rollout_id in batch) == sorted(queued)
        assert all([place[one] for one in batch] == sorted(place[one] for one in batch) for batch in claims)
        ended = await waiting
        assert [rollout.rollout_id for rollout in ended] == queued
        assert {rollout.status for rollout in ended} == {"succeeded"}

        pages = [
            await store.query_rollouts(limit=BATCH, offset=first, status_in=["succeeded"])
            for first in range(0, ROLLOUTS, BATCH)
        ]
        assert [rollout.rollout_id for page in pages for rollout in page] == queued
        assert {page.total for page in pages} == {ROLLOUTS}
        for number in range(0, ROLLOUTS, 97):
            assert [span.name for span in await store.query_spans(queued[number])] == [str(number)]
        held = await store.statistics()
        assert (held["total_rollouts"], held["total_attempts"], held["total_spans"]) == (ROLLOUTS,) * 3
