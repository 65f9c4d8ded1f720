"""Attempts and what the rollout makes of them: retries, giving up, late writes, ends."""

import asyncio
from typing import Any

import pytest

from lightning_core.errors import InvalidRequest, InvalidTransition, NotFound
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import (
    LEASE_SECONDS,
    StoreBehaviour,
    attempt_statuses,
    begin,
    claim,
    present,
    rollout_status,
    soon,
    span_of,
)
from lightning_core.types import AttemptStatus, Rollout, RolloutConfig


class AttemptBehaviour(StoreBehaviour):
    """The status machine, as a caller of the store meets it."""

    async def test_a_succeeded_attempt_ends_its_rollout(self, store: LightningStore, clock: FakeClock) -> None:
        started = await begin(store)
        await clock.advance(3)
        attempt = await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")
        assert (attempt.status, attempt.end_time) == ("succeeded", clock.now())
        rollout = present(await store.get_rollout_by_id(started.rollout_id))
        assert (rollout.status, rollout.end_time) == ("succeeded", clock.now())

    async def test_a_retry_follows_what_the_policy_names_until_attempts_run_out(self, store: LightningStore) -> None:
        status: AttemptStatus = "unresponsive"
        config = RolloutConfig(max_attempts=3, retry_condition=[status])
        rollout = await store.enqueue_rollout("a", config=config)
        for number in (1, 2, 3):
            claimed = await claim(store)
            assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, number)
            await store.update_attempt(rollout.rollout_id, claimed.attempt.attempt_id, status=status)
            expected = "requeuing" if number < 3 else "failed"
            assert await rollout_status(store, rollout.rollout_id) == expected
        assert await store.dequeue_rollout() is None
        assert await attempt_statuses(store, rollout.rollout_id) == [status] * 3

    async def test_a_started_attempt_goes_past_max_attempts(self, store: LightningStore) -> None:
        started = await begin(store)
        again = await store.start_attempt(started.rollout_id, "w-2")
        assert (again.attempt.sequence_id, again.attempt.worker_id) == (2, "w-2")
        assert again.attempt.attempt_id != started.attempt.attempt_id

    async def test_a_rollout_runs_without_an_attempt_when_a_caller_says_so(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a", config=RolloutConfig(timeout_seconds=5, unresponsive_seconds=5))
        for status in ("running", "preparing"):
            assert (await store.update_rollout(queued.rollout_id, status=status)).status == status
            assert await store.dequeue_rollout() is None
        assert type(await store.get_rollout_by_id(queued.rollout_id)) is Rollout
        await store.update_rollout(queued.rollout_id, status="queuing")
        claimed = await claim(store)
        await store.update_rollout(queued.rollout_id, status="running")
        await store.update_attempt(queued.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        assert await rollout_status(store, queued.rollout_id) == "succeeded"

    async def test_latest_is_the_newest_attempt(self, store: LightningStore) -> None:
        old = await begin(store)
        new = await store.start_attempt(old.rollout_id)
        updated = await store.update_attempt(old.rollout_id, "latest", metadata={"a": 1})
        assert updated.attempt_id == new.attempt.attempt_id
        assert (await store.get_latest_attempt(old.rollout_id)) == updated
        assert (await store.query_attempts(old.rollout_id))[0].metadata is None

    async def test_what_is_not_given_is_left_alone_and_none_is_a_value(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        resources = await store.add_resources({})
        rollout = await store.start_rollout(
            "a", "train", resources.resources_id, RolloutConfig(max_attempts=2), {"a": 1}, "w-1"
        )
        assert await store.update_rollout(rollout.rollout_id) == rollout
        assert await store.update_attempt(rollout.rollout_id, "latest") == rollout.attempt
        changed = await store.update_rollout(
            rollout.rollout_id, input=None, mode=None, resources_id=None, metadata=None
        )
        assert (changed.input, changed.mode, changed.resources_id, changed.metadata) == (None, None, None, None)
        assert (changed.config, changed.status) == (rollout.config, "preparing")
        began = clock.now()
        await clock.advance(9)
        await store.update_attempt(rollout.rollout_id, "latest", metadata={"a": 1}, last_heartbeat_time=began + 4)
        attempt = await store.update_attempt(rollout.rollout_id, "latest", metadata=None, worker_id="w-2")
        assert (attempt.metadata, attempt.last_heartbeat_time, attempt.worker_id) == (None, began + 4, "w-2")
        attempt = await store.update_attempt(rollout.rollout_id, "latest", metadata={}, worker_id="")
        assert (attempt.metadata, attempt.worker_id) == ({}, "")
        assert (await store.get_latest_attempt(rollout.rollout_id)) == attempt

    async def test_metadata_that_several_add_to_lose_nothing(self, store: LightningStore) -> None:
        rollout = await begin(store)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        await store.update_attempt(*ids, metadata={"mine": 1, "other": {"a": 1}})
        additions = [store.update_attempt(*ids, add_metadata={f"n{number}": number}) for number in range(20)]
        await asyncio.gather(*additions)
        attempt = await store.update_attempt(*ids, add_metadata={"other": {"b": 2}, "status": None}, status="failed")
        expected = {"mine": 1, "other": {"b": 2}, "status": None, **{f"n{number}": number for number in range(20)}}
        assert (attempt.metadata, attempt.status) == (expected, "failed")
        assert (await store.update_attempt(*ids, metadata={"new": 1}, add_metadata={"more": 2})).metadata == {
            "new": 1,
            "more": 2,
        }

    async def test_what_is_added_to_no_metadata_is_all_there_is(self, store: LightningStore) -> None:
        rollout = await begin(store)
        assert (await store.update_attempt(rollout.rollout_id, "latest", add_metadata={})).metadata is None
        added = {"a": [1]}
        attempt = await store.update_attempt(rollout.rollout_id, "latest", add_metadata=added, request_id="add-1")
        added["a"].append(2)  # what the caller has is not the store's
        assert attempt.metadata == {"a": [1]}
        await store.update_attempt(rollout.rollout_id, "latest", add_metadata={"a": 3})
        repeated = await store.update_attempt(rollout.rollout_id, "latest", add_metadata={"a": [1]}, request_id="add-1")
        assert repeated.metadata == {"a": 3}

    async def test_a_sign_of_life_is_never_taken_back_and_never_in_the_future(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        started = await begin(store)
        began = clock.now()

        async def told(at: float) -> float | None:
            return (
                await store.update_attempt(started.rollout_id, "latest", last_heartbeat_time=at)
            ).last_heartbeat_time

        assert await told(began - 5) == began
        await clock.advance(9)
        assert await told(began + 4) == began + 4
        assert await told(began + 3) == began + 4
        assert await told(9e18) == began + 9

    @pytest.mark.parametrize(
        "wrong",
        [
            {"mode": "exam"},
            {"status": "done"},
            {"status": None},
            {"config": None},
            {"config": {"max_attempts": 0}},
            {"metadata": "x"},
            {"resources_id": 3},
        ],
        ids=str,
    )
    async def test_a_rollout_refuses_a_wrong_value_by_name(self, store: LightningStore, wrong: dict[str, Any]) -> None:
        rollout = await store.enqueue_rollout("a", mode="val")
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            await store.update_rollout(rollout.rollout_id, **wrong)
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout

    @pytest.mark.parametrize(
        "wrong",
        [
            {"status": "done"},
            {"last_heartbeat_time": "noon"},
            {"last_heartbeat_time": float("nan")},
            {"metadata": [1]},
            {"add_metadata": [1]},
            {"add_metadata": None},
            {"worker_id": 7},
        ],
        ids=str,
    )
    async def test_an_attempt_refuses_a_wrong_value_by_name(self, store: LightningStore, wrong: dict[str, Any]) -> None:
        started = await begin(store)
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            await store.update_attempt(started.rollout_id, "latest", **wrong)
        assert await store.get_latest_attempt(started.rollout_id) == started.attempt

    async def test_a_refused_change_changes_nothing(self, store: LightningStore) -> None:
        started = await begin(store)
        ended = await store.update_rollout(started.rollout_id, status="cancelled")
        with pytest.raises(InvalidTransition):
            await store.update_rollout(started.rollout_id, status="succeeded", metadata={"a": 1})
        assert await store.get_rollout_by_id(started.rollout_id) == ended

    async def test_unknown_ids_are_named(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a")
        started = await begin(store)
        assert await store.get_rollout_by_id("ro-none") is None
        assert await store.get_latest_attempt(queued.rollout_id) is None
        for call in (
            store.start_attempt("ro-none"),
            store.report_fault("ro-none", "at-none", "the proxy died"),
            store.update_rollout("ro-none", metadata={}),
            store.update_attempt("ro-none", "latest", metadata={}),
            store.get_next_span_sequence_id("ro-none", "at-none"),
        ):
            with pytest.raises(NotFound, match="no rollout 'ro-none'"):
                await call
        for call in (
            store.update_attempt(started.rollout_id, "at-none", status="failed"),
            store.get_next_span_sequence_id(started.rollout_id, "at-none"),
        ):
            with pytest.raises(NotFound, match=f"no attempt 'at-none'; it has {started.attempt.attempt_id}"):
                await call
        with pytest.raises(NotFound, match="no attempt 'latest'; it has none yet"):
            await store.update_attempt(queued.rollout_id, "latest", status="failed")

    async def test_what_does_not_exist_has_neither_attempts_nor_spans(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(span_of(started))
        assert (await store.query_attempts("ro-none")).total == 0
        assert await store.get_latest_attempt("ro-none") is None
        for rollout_id, attempt_id in (
            ("ro-none", None),
            ("ro-none", "latest"),
            ("ro-none", started.attempt.attempt_id),
            (started.rollout_id, "at-none"),
        ):
            found = await store.query_spans(rollout_id, attempt_id, limit=3, offset=1)
            assert (list(found), found.total, found.limit, found.offset) == ([], 0, 3, 1)

    # Cancellation: the rollout is over, whatever its attempt still does

    async def test_whoever_executes_a_cancelled_rollout_can_learn_of_it(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("w-1")
        await store.enqueue_rollout("a")
        claimed = await claim(store, "w-1")
        learns = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id]))
        await soon(clock.until_waiting())  # for the end of the lease
        await store.update_rollout(claimed.rollout_id, status="cancelled")
        assert [item.status for item in await soon(learns)] == ["cancelled"]

    async def test_a_cancelled_attempt_ends_itself_and_frees_its_worker(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.update_worker("w-1")
        started = await begin(store, worker_id="w-1", max_attempts=3, retry_condition=["failed"], timeout_seconds=5)
        cancelled = await store.update_rollout(started.rollout_id, status="cancelled")
        await store.update_worker("w-1")
        await clock.advance(2 * LEASE_SECONDS)
        assert await attempt_statuses(store, started.rollout_id) == ["preparing"]
        await store.add_span(span_of(started, "stopped"))
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="failed")
        assert await attempt_statuses(store, started.rollout_id) == ["failed"]
        rollout = present(await store.get_rollout_by_id(started.rollout_id))
        assert (rollout.status, rollout.end_time) == ("cancelled", cancelled.end_time)
        worker = present(await store.get_worker_by_id("w-1"))
        assert (worker.status, worker.current_attempt_id) == ("idle", None)
        assert await store.dequeue_rollout() is None
