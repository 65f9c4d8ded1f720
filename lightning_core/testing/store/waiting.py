"""Waiting for results."""

import asyncio
from typing import Any

import pytest

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import StoreBehaviour, begin, claim, present, require, soon, turn
from lightning_core.types import EnqueueRolloutRequest


class WaitingBehaviour(StoreBehaviour):
    """A wait ends when the last rollout does, or at its time."""

    async def test_a_wait_ends_with_the_last_of_its_rollouts(self, store: LightningStore) -> None:
        started = [await begin(store, number) for number in range(3)]
        ids = [item.rollout_id for item in started]
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
        await store.update_attempt(ids[2], "latest", status="succeeded")
        await store.update_attempt(ids[0], "latest", status="failed")
        await asyncio.sleep(0)
        assert not waiter.done()
        await store.update_rollout(ids[1], status="cancelled")
        ended = await soon(waiter)
        assert [(item.rollout_id, item.status) for item in ended] == [
            (ids[0], "failed"),
            (ids[1], "cancelled"),
            (ids[2], "succeeded"),
        ]

    async def test_at_its_time_a_wait_returns_what_has_ended(self, store: LightningStore, clock: FakeClock) -> None:
        ids = [(await begin(store, number)).rollout_id for number in range(3)]
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=10))
        await soon(clock.until_waiting())
        await store.update_rollout(ids[1], status="succeeded")
        await clock.advance(9.9)
        assert not waiter.done()
        await clock.advance(0.1)
        assert [item.rollout_id for item in await soon(waiter)] == [ids[1]]

    async def test_a_timeout_of_zero_looks_once(self, store: LightningStore) -> None:
        ids = [(await begin(store, number)).rollout_id for number in range(2)]
        assert list(await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=0))) == []
        await store.update_rollout(ids[1], status="succeeded")
        ended = await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=0))
        assert [item.rollout_id for item in ended] == [ids[1]]

    async def test_what_has_ended_before_is_not_waited_for(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        ended = await soon(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        assert list(ended) == [await store.get_rollout_by_id(started.rollout_id)]
        assert list(await soon(store.wait_for_rollouts(rollout_ids=[]))) == []

    async def test_an_unknown_id_is_not_waited_for(self, store: LightningStore) -> None:
        assert list(await soon(store.wait_for_rollouts(rollout_ids=["ro-none"]))) == []
        started = await begin(store)
        ids = ["ro-none", started.rollout_id, "ro-none-either"]
        waiters = [
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, **wait))
            for wait in ({}, {"min_ended": 2}, {"timeout": 50})
        ]
        await turn(5)
        assert not any(waiter.done() for waiter in waiters)
        await store.update_rollout(started.rollout_id, status="failed")
        for waiter in waiters:
            assert [item.rollout_id for item in await soon(waiter)] == [started.rollout_id]

    async def test_a_retry_does_not_end_a_wait(self, store: LightningStore) -> None:
        started = await begin(store, max_attempts=2, retry_condition=["failed"])
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        await asyncio.sleep(0)
        await store.update_attempt(started.rollout_id, "latest", status="failed")
        await claim(store)
        await asyncio.sleep(0)
        assert not waiter.done()
        await store.update_attempt(started.rollout_id, "latest", status="failed")
        assert [item.status for item in await soon(waiter)] == ["failed"]

    async def test_a_wait_for_some_ends_with_as_many(self, store: LightningStore) -> None:
        ids = [(await begin(store, number)).rollout_id for number in range(4)]
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, min_ended=2))
        await store.update_rollout(ids[3], status="succeeded")
        await turn(5)
        assert not waiter.done()
        await store.update_rollout(ids[1], status="cancelled")
        assert [item.rollout_id for item in await soon(waiter)] == [ids[1], ids[3]]

    async def test_a_wait_for_some_gives_all_that_have_ended(self, store: LightningStore) -> None:
        ids = [(await begin(store, number)).rollout_id for number in range(4)]
        for rollout_id in ids[1:]:
            await store.update_rollout(rollout_id, status="succeeded")
        for min_ended in (0, 2):
            ended = await soon(store.wait_for_rollouts(rollout_ids=ids, min_ended=min_ended))
            assert [item.rollout_id for item in ended] == ids[1:]

    async def test_an_id_given_twice_counts_once(self, store: LightningStore) -> None:
        one, two = [(await begin(store, number)).rollout_id for number in range(2)]
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[one, one, two], min_ended=2))
        await store.update_rollout(one, status="succeeded")
        await turn(5)
        assert not waiter.done()
        await store.update_rollout(two, status="succeeded")
        assert {item.rollout_id for item in await soon(waiter)} == {one, two}

    @pytest.mark.parametrize("min_ended", [-1, 3])
    async def test_more_than_there_are_cannot_be_waited_for(self, store: LightningStore, min_ended: int) -> None:
        one, two = [(await begin(store, number)).rollout_id for number in range(2)]
        with pytest.raises(
            InvalidRequest, match=f"min_ended is {min_ended}; it is from 0 to 2, the number of rollouts"
        ):
            await soon(store.wait_for_rollouts(rollout_ids=[one, two, one], min_ended=min_ended))

    @pytest.mark.parametrize(
        ("wait", "message"),
        [
            ({"rollout_ids": "ro-1"}, r"rollout_ids is 'ro-1'; it takes a sequence of ids, such as \['ro-1'\]"),
            ({"rollout_ids": [1]}, "rollout_ids has 1; an id is a string"),
            ({"rollout_ids": None}, "rollout_ids is None; it takes a sequence of ids"),
            ({"rollout_ids": [], "timeout": float("nan")}, "timeout is nan; it is a finite number"),
            ({"rollout_ids": [], "timeout": "3"}, "timeout is '3'; it is a finite number"),
        ],
        ids=str,
    )
    async def test_a_wait_for_nothing_sensible_is_refused(
        self, store: LightningStore, wait: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            await soon(store.wait_for_rollouts(**wait))

    async def test_a_wait_without_end_may_be_said_as_infinity(self, store: LightningStore) -> None:
        waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=float("inf")))
        await turn(5)
        queued = await store.enqueue_rollout("a")
        claimed = present(await soon(waiter))
        assert claimed.rollout_id == queued.rollout_id

    async def test_waiters_do_not_disturb_each_other(self, store: LightningStore) -> None:
        require(store, "async_safe")
        ids = [(await begin(store, number)).rollout_id for number in range(3)]
        leaver = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
        all_of_them = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
        one = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids[:1]))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        await store.update_rollout(ids[0], status="succeeded")
        assert len(await soon(one)) == 1
        for rollout_id in ids[1:]:
            await store.update_rollout(rollout_id, status="succeeded")
        assert len(await soon(all_of_them)) == 3

    async def test_results_reach_a_waiter_from_another_thread(self, store: LightningStore) -> None:
        require(store, "thread_safe")
        rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(20)])
        ids = [rollout.rollout_id for rollout in rollouts]

        async def work() -> None:
            while claimed := await store.dequeue_rollout():
                await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")

        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
        await soon(asyncio.gather(*(asyncio.to_thread(asyncio.run, work()) for _ in range(2))))
        assert [item.rollout_id for item in await soon(waiter)] == ids

    async def test_work_reaches_a_waiter_in_another_thread(self, store: LightningStore) -> None:
        require(store, "thread_safe")

        async def take() -> int:
            claimed = present(await store.dequeue_rollout(wait_seconds=None))
            return int(claimed.input)

        threads = [asyncio.create_task(asyncio.to_thread(asyncio.run, take())) for _ in range(3)]
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        assert sorted(await soon(asyncio.gather(*threads))) == [0, 1, 2]
