"""Requests that are repeated because their answer was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    LEASE_SECONDS,
    StoreBehaviour,
    attempt_statuses,
    begin,
    claim,
    present,
    require,
    rollout_status,
    soon,
)
from lightning_core.types import (
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    RolloutConfig,
)

Mutation = Callable[[LightningStore, AttemptedRollout, int, str], Awaitable[Any]]

MUTATIONS: dict[str, Mutation] = {
    "start_rollout": lambda store, target, n, id: store.start_rollout(f"new {n}", worker_id="w-9", request_id=id),
    "start_rollout of a worker": lambda store, target, n, id: store.start_rollout(
        "new", worker_id=f"w-{8 + n}", request_id=id
    ),
    "enqueue_rollout": lambda store, target, n, id: store.enqueue_rollout(
        f"new {n}", metadata={"a": [1]}, request_id=id
    ),
    "enqueue_many_rollouts": lambda store, target, n, id: store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input="new")] * (n + 1), request_id=id
    ),
    "dequeue_rollout": lambda store, target, n, id: store.dequeue_rollout(f"w-{n}", request_id=id),
    "dequeue_many_rollouts": lambda store, target, n, id: store.dequeue_many_rollouts(
        limit=2, worker_id=f"w-{n}", request_id=id
    ),
    "start_attempt": lambda store, target, n, id: store.start_attempt(target.rollout_id, f"w-{8 + n}", request_id=id),
    "update_rollout": lambda store, target, n, id: store.update_rollout(
        target.rollout_id, status="requeuing", metadata={"a": [n]}, request_id=id
    ),
    "update_attempt": lambda store, target, n, id: store.update_attempt(
        target.rollout_id, target.attempt.attempt_id, status="failed", metadata={"a": [n]}, request_id=id
    ),
    "report_fault": lambda store, target, n, id: store.report_fault(
        target.rollout_id, target.attempt.attempt_id, f"proxy {n} died", request_id=id
    ),
    "add_resources": lambda store, target, n, id: store.add_resources(prompt(n), request_id=id),
    "update_resources": lambda store, target, n, id: store.update_resources("rs-1", prompt(n), request_id=id),
    "update_worker": lambda store, target, n, id: store.update_worker("w-1", {"load": n}, request_id=id),
    "save_state": lambda store, target, n, id: store.save_state("apo", {"round": n}, request_id=id),
    "begin_run": lambda store, target, n, id: store.begin_run(request_id=id),
}
"""Every mutation that takes a request id, of a store that was furnished, with arguments that have a number in them.

The second argument is the rollout that runs. But for `end_run`: after that there is no work.
"""

SETTING = ("update_rollout", "update_attempt", "report_fault", "save_state", "begin_run")
"""Those that say what something is to become, rather than ask for something more."""

CHANGING_ONE_RECORD = ("update_rollout", "update_attempt", "update_resources", "update_worker", "save_state")
"""Those that may change one record again and again."""


def prompt(number: int) -> NamedResources:
    """Make a bundle of one prompt."""
    return {"p": PromptTemplate(template=str(number))}


def as_data(value: Any) -> Any:
    """Return what a store gave as plain data."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value


async def everything(store: LightningStore) -> dict[str, Any]:
    """Return all that a store shows, but for when workers asked last: every request for work is one."""
    rollouts = list(await store.query_rollouts())
    workers = [worker.model_dump(exclude={"last_dequeue_time"}) for worker in await store.query_workers()]
    latest = await store.get_latest_resources()
    return {
        "rollouts": as_data(rollouts),
        "attempts": [as_data(list(await store.query_attempts(rollout.rollout_id))) for rollout in rollouts],
        "resources": as_data(list(await store.query_resources())),
        "latest": None if latest is None else latest.resources_id,
        "workers": workers,
        "state": await store.load_state("apo"),
    }


async def furnish(store: LightningStore) -> AttemptedRollout:
    """Put something of everything into a store; the rollout that runs is returned."""
    await store.update_resources("rs-1", prompt(0))
    await store.save_state("apo", {"round": 0})
    target = await begin(store, worker_id="w-1", max_attempts=5, retry_condition=["failed"])
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(5)])
    return target


class RequestBehaviour(StoreBehaviour):
    """The same request twice is one effect."""

    @pytest.mark.parametrize("mutation", MUTATIONS)
    async def test_a_repeated_request_has_one_effect_and_the_same_answer(
        self, store: LightningStore, clock: FakeClock, mutation: str
    ) -> None:
        target, send = await furnish(store), MUTATIONS[mutation]
        await clock.advance(1)
        first = as_data(await send(store, target, 1, "r-1"))
        after = await everything(store)
        for _ in range(2):
            await clock.advance(1)
            assert as_data(await send(store, target, 1, "r-1")) == first
            assert await everything(store) == after
        await send(store, target, 1, "r-2")
        assert (await everything(store) != after) or mutation in SETTING

    @pytest.mark.parametrize("mutation", MUTATIONS)
    async def test_a_request_repeated_after_something_else_happened_undoes_nothing(
        self, store: LightningStore, clock: FakeClock, mutation: str
    ) -> None:
        target, send = await furnish(store), MUTATIONS[mutation]
        await clock.advance(1)
        await send(store, target, 1, "r-1")
        await clock.advance(1)
        await store.update_resources("rs-1", prompt(9))
        await store.save_state("apo", {"round": 9})
        for rollout in await store.query_rollouts():
            await store.update_rollout(rollout.rollout_id, metadata={"newer": True})
        await store.start_attempt(target.rollout_id, "w-2")
        for worker_id in ("w-1", "w-9"):
            await begin(store, worker_id=worker_id)
        await store.update_worker("w-1", {"load": 9})
        after = await everything(store)
        await clock.advance(1)
        await send(store, target, 1, "r-1")
        assert await everything(store) == after

    @pytest.mark.parametrize("mutation", MUTATIONS)
    async def test_a_request_that_arrives_twice_at_once_has_one_effect(
        self, store: LightningStore, mutation: str
    ) -> None:
        require(store, "async_safe")
        target, send = await furnish(store), MUTATIONS[mutation]
        answers = await soon(asyncio.gather(*(send(store, target, 1, "r-1") for _ in range(4))))
        assert [as_data(answer) for answer in answers] == [as_data(answers[0])] * 4
        after = await everything(store)
        await send(store, target, 1, "r-1")
        assert await everything(store) == after

    async def test_a_request_that_changed_nothing_changes_nothing_later(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a")
        await store.update_rollout(queued.rollout_id, status="queuing", request_id="r-1")
        await claim(store)
        await store.update_rollout(queued.rollout_id, status="queuing", request_id="r-1")
        assert await rollout_status(store, queued.rollout_id) == "preparing"
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("reopens", [False, True], ids=["hours later", "after the store was opened again"])
    @pytest.mark.parametrize("mutation", CHANGING_ONE_RECORD)
    async def test_a_request_repeated_late_and_after_many_others_undoes_nothing(
        self, store: LightningStore, clock: FakeClock, mutation: str, reopens: bool
    ) -> None:
        target, send = await furnish(store), MUTATIONS[mutation]
        for number in range(20):
            await send(store, target, number, f"r-{number}")
        await clock.advance(23 * 3600)
        again = await self.reopen_store(store, clock=clock) if reopens else store
        if again is None:
            pytest.skip("nothing outlives this store")
        after = await everything(again)
        for number in (0, 5, 11, 12, 19):
            await send(again, target, number, f"r-{number}")
            assert await everything(again) == after
        await send(again, target, 20, "r-20")
        assert await everything(again) != after
        await again.aclose()

    async def test_resources_are_the_same_request_when_the_proxy_of_the_run_is_elsewhere(
        self, store: LightningStore
    ) -> None:
        before = ProxyLLM(endpoint="http://127.0.0.1:4001/v1", model="m")
        first = await store.add_resources({"llm": before}, request_id="r-1")
        again = await store.add_resources(
            {"llm": before.model_copy(update={"endpoint": "http://127.0.0.1:4002/v1"})}, request_id="r-1"
        )
        assert again == first

    @pytest.mark.parametrize("mutation", [each for each in MUTATIONS if each != "begin_run"])
    async def test_an_id_that_comes_again_with_other_arguments_is_refused_and_changes_nothing(
        self, store: LightningStore, mutation: str
    ) -> None:
        target, send = await furnish(store), MUTATIONS[mutation]
        await send(store, target, 1, "r-1")
        after = await everything(store)
        with pytest.raises(InvalidRequest, match="request id 'r-1' came before with other arguments"):
            await send(store, target, 2, "r-1")
        assert await everything(store) == after

    async def test_an_old_id_that_comes_again_with_other_arguments_is_refused(self, store: LightningStore) -> None:
        for number in range(12):
            await store.save_state("apo", {"round": number}, request_id=f"r-{number}")
        with pytest.raises(InvalidRequest, match="request id 'r-0' came before"):
            await store.save_state("apo", {"round": 12}, request_id="r-0")
        assert await store.load_state("apo") == {"round": 11}

    async def test_work_that_is_asked_for_again_may_come_with_other_limits(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("a", config=RolloutConfig(timeout_seconds=1), request_id="r-1")
        again = await store.enqueue_rollout("a", metadata={"step": 2}, request_id="r-1")
        assert again == first

    async def test_requests_of_different_runs_are_different(self, store: LightningStore) -> None:
        other = store.for_run("another-run")
        ids = {(await of.enqueue_rollout("a", request_id="r-1")).rollout_id for of in (store, other)}
        assert len(ids) == 2
        claimed = [await of.dequeue_rollout(request_id="r-2") for of in (store, other)]
        assert {item.rollout_id for item in claimed if item is not None} == ids
        for of in (store, other):
            await of.add_resources({}, request_id="r-3")
            assert (await of.query_resources()).total == 1
        await other.aclose()

    # Claims

    async def test_a_repeated_claim_of_many_gets_the_same_and_no_more(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(5)])
        first = list(await store.dequeue_many_rollouts(limit=3, worker_id="w-1", request_id="r-1"))
        again = list(await store.dequeue_many_rollouts(limit=3, worker_id="w-1", request_id="r-1"))
        assert [item.input for item in first] == [0, 1, 2]
        assert again == first
        assert [item.input for item in await store.dequeue_many_rollouts(limit=3, request_id="r-2")] == [3, 4]
        assert [item.input for item in await store.dequeue_many_rollouts(limit=3, request_id="r-2")] == [3, 4]

    async def test_what_a_request_has_claimed_is_found_and_it_claims_no_more_from_then_on(
        self, store: LightningStore
    ) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
        first = list(await store.dequeue_many_rollouts(limit=2, worker_id="w-1", request_id="r-1"))
        assert list(await store.dequeue_many_rollouts(limit=0, worker_id="w-1", request_id="r-1")) == first
        assert list(await store.dequeue_many_rollouts(limit=0, worker_id="w-1", request_id="r-2")) == []
        assert list(await store.dequeue_many_rollouts(limit=2, worker_id="w-1", request_id="r-2")) == []
        assert [item.input for item in await store.dequeue_many_rollouts(limit=2, request_id="r-3")] == [2]

    async def test_a_repeated_claim_gets_those_that_are_still_its_own(self, store: LightningStore) -> None:
        rollouts = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(6)])
        ids = [rollout.rollout_id for rollout in rollouts]
        await store.dequeue_many_rollouts(limit=5, request_id="r-1")
        await store.update_attempt(ids[0], "latest", status="succeeded")
        await store.update_rollout(ids[1], status="cancelled")
        await store.start_attempt(ids[2], "w-2")
        await store.update_rollout(ids[3], status="requeuing")
        assert [item.input for item in await store.dequeue_many_rollouts(limit=5, request_id="r-1")] == [4]
        await store.delete_rollouts(ids[:1])
        assert [item.input for item in await store.dequeue_many_rollouts(limit=5, request_id="r-1")] == [4]
        assert [item.input for item in await store.dequeue_many_rollouts(limit=5)] == [5, 3]

    @pytest.mark.parametrize("wait_seconds", [0.0, None])
    @pytest.mark.parametrize("taken", ["requeued", "claimed by another"])
    async def test_a_claim_repeated_after_its_lease_was_lost_gets_nothing_and_at_once(
        self, store: LightningStore, clock: FakeClock, wait_seconds: float | None, taken: str
    ) -> None:
        await store.enqueue_rollout("a")
        await store.update_worker("w-1")
        claimed = present(await store.dequeue_rollout("w-1", request_id="r-1"))
        await clock.advance(LEASE_SECONDS)
        if taken == "claimed by another":
            assert (await claim(store, "w-2")).rollout_id == claimed.rollout_id
        before = await everything(store)
        assert await soon(store.dequeue_rollout("w-1", wait_seconds=wait_seconds, request_id="r-1")) is None
        assert await everything(store) == before

    @pytest.mark.parametrize("wait_seconds", [0.0, None])
    @pytest.mark.parametrize("worker_id", ["w-1", None])
    async def test_a_late_copy_of_a_claim_that_was_answered_with_nothing_claims_nothing_and_at_once(
        self, store: LightningStore, clock: FakeClock, worker_id: str | None, wait_seconds: float | None
    ) -> None:
        assert await store.dequeue_rollout(worker_id, request_id="r-1") is None
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(2)])
        assert await store.dequeue_rollout(worker_id, request_id="r-2") is not None
        await clock.advance(3600)
        before = await everything(store)
        assert await soon(store.dequeue_rollout(worker_id, wait_seconds=wait_seconds, request_id="r-1")) is None
        assert await everything(store) == before
        assert (await claim(store)).input == 1

    async def test_a_late_copy_of_a_claim_that_waited_in_vain_claims_nothing(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        waiter = asyncio.create_task(store.dequeue_rollout("w-1", wait_seconds=10, request_id="r-1"))
        await soon(clock.until_waiting())
        await clock.advance(10)
        assert await soon(waiter) is None
        await store.enqueue_rollout("a")
        assert await soon(store.dequeue_rollout("w-1", wait_seconds=10, request_id="r-1")) is None
        assert (await claim(store)).input == "a"

    async def test_a_claim_that_is_broken_off_can_be_repeated(self, store: LightningStore, clock: FakeClock) -> None:
        waiter = asyncio.create_task(store.dequeue_rollout("w-1", wait_seconds=10, request_id="r-1"))
        await soon(clock.until_waiting())
        waiter.cancel()
        await asyncio.wait((waiter,))
        queued = await store.enqueue_rollout("a")
        claimed = present(await soon(store.dequeue_rollout("w-1", wait_seconds=10, request_id="r-1")))
        assert claimed.rollout_id == queued.rollout_id

    async def test_that_a_claim_was_answered_with_nothing_outlives_the_store(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        assert await store.dequeue_rollout("w-1", request_id="r-1") is None
        await store.enqueue_rollout("a")
        reopened = await self.reopen_store(store, clock=clock)
        if reopened is None:
            pytest.skip("nothing outlives this store")
        assert await reopened.dequeue_rollout("w-1", request_id="r-1") is None
        assert (await claim(reopened)).input == "a"
        await reopened.aclose()

    # Attempts that somebody began past the queue

    async def test_a_claim_under_the_id_of_a_start_is_a_claim(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a")
        started = await store.start_attempt(queued.rollout_id, "w-1", request_id="r-1")
        await store.update_rollout(queued.rollout_id, status="requeuing")
        claimed = present(await store.dequeue_rollout("w-1", request_id="r-1"))
        assert claimed.attempt.attempt_id != started.attempt.attempt_id
        assert (await store.dequeue_rollout("w-1", request_id="r-1")) == claimed
        assert (await store.start_attempt(queued.rollout_id, "w-1", request_id="r-1")).attempt == (
            await store.query_attempts(queued.rollout_id)
        )[0]
        ended = await store.update_attempt(queued.rollout_id, "latest", status="succeeded", request_id="r-1")
        assert (ended.attempt_id, ended.status) == (claimed.attempt.attempt_id, "succeeded")

    async def test_a_repeated_request_gets_its_own_attempt_and_not_a_newer_one(self, store: LightningStore) -> None:
        started = await store.start_rollout("a", worker_id="w-1", request_id="r-1")
        second = await store.start_attempt(started.rollout_id, "w-2", request_id="r-2")
        third = await store.start_attempt(started.rollout_id, "w-3")
        for again, own in (
            (await store.start_rollout("a", worker_id="w-1", request_id="r-1"), started),
            (await store.start_attempt(started.rollout_id, "w-2", request_id="r-2"), second),
        ):
            assert again.attempt == own.attempt
            assert again.status == third.status
        assert await attempt_statuses(store, started.rollout_id) == ["preparing"] * 3

    async def test_a_repeated_request_about_the_latest_attempt_answers_about_the_one_that_was_the_latest(
        self, store: LightningStore
    ) -> None:
        started = await store.start_rollout("a", worker_id="w-1")
        first = await store.update_attempt(started.rollout_id, "latest", metadata={"a": 1}, request_id="r-1")
        newer = await store.start_attempt(started.rollout_id, "w-2")
        assert await store.update_attempt(started.rollout_id, "latest", metadata={"a": 1}, request_id="r-1") == first
        assert first.attempt_id == started.attempt.attempt_id
        assert await store.get_latest_attempt(started.rollout_id) == newer.attempt

    async def test_claims_and_heartbeats_may_use_the_same_request_id(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a")
        await store.update_worker("w-1", request_id="r-1")
        await store.dequeue_rollout("w-1", request_id="r-1")
        worker = present(await store.get_worker_by_id("w-1"))
        assert worker.current_rollout_id == queued.rollout_id

    async def test_a_repeated_heartbeat_is_no_new_sign_of_life(self, store: LightningStore, clock: FakeClock) -> None:
        await store.enqueue_rollout("a", config=RolloutConfig(max_attempts=2))
        await store.update_worker("w-1", request_id="r-1")
        claimed = await claim(store, "w-1")
        await clock.advance(LEASE_SECONDS - 1)
        await store.update_worker("w-1", request_id="r-1")
        await clock.advance(1)
        assert await rollout_status(store, claimed.rollout_id) == "requeuing"
