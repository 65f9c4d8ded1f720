"""Workers' records, and the saved state of algorithms."""

from typing import Any

import pytest

from lightning_core.errors import InvalidRequest
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import LEASE_SECONDS, StoreBehaviour, begin, claim, present, rollout_status
from lightning_core.types import Worker


async def worker_of(store: LightningStore, worker_id: str = "w-1") -> Worker:
    """Return a worker that has to be known."""
    return present(await store.get_worker_by_id(worker_id))


class WorkerBehaviour(StoreBehaviour):
    """A worker's record follows what it does; saved state is kept by name."""

    async def test_a_worker_is_made_known_by_its_heartbeat(self, store: LightningStore, clock: FakeClock) -> None:
        assert await store.get_worker_by_id("w-1") is None
        worker = await store.update_worker("w-1", {"cpu": [0.5]})
        assert (worker.worker_id, worker.status) == ("w-1", "unknown")
        assert (worker.heartbeat_stats, worker.last_heartbeat_time) == ({"cpu": [0.5]}, clock.now())
        assert await store.get_worker_by_id("w-1") == worker

    async def test_what_a_heartbeat_does_not_say_stays(self, store: LightningStore, clock: FakeClock) -> None:
        await store.update_worker("w-1", {"cpu": 0.5})
        await clock.advance(3)
        worker = await store.update_worker("w-1")
        assert (worker.heartbeat_stats, worker.last_heartbeat_time) == ({"cpu": 0.5}, clock.now())
        assert (await store.update_worker("w-1", {})).heartbeat_stats == {}
        with pytest.raises(InvalidRequest, match="heartbeat_stats is None; it is a mapping"):
            await store.update_worker("w-1", None)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="heartbeat_stats is 'busy'"):
            await store.update_worker("w-1", "busy")  # type: ignore[arg-type]

    async def test_asking_for_work_is_recorded(self, store: LightningStore, clock: FakeClock) -> None:
        await store.dequeue_rollout("w-1")
        worker = await worker_of(store)
        assert (worker.status, worker.last_dequeue_time, worker.last_heartbeat_time) == ("unknown", clock.now(), None)

    @pytest.mark.parametrize("how", ["claim", "start_rollout", "start_attempt"])
    async def test_a_worker_with_an_attempt_is_busy_and_holds_a_lease_on_it(
        self, store: LightningStore, clock: FakeClock, how: str
    ) -> None:
        await store.update_worker("w-1")
        await clock.advance(3)
        if how == "start_rollout":
            started = await begin(store, worker_id="w-1")
        else:
            queued = await store.enqueue_rollout("a")
            started = await (claim(store, "w-1") if how == "claim" else store.start_attempt(queued.rollout_id, "w-1"))
        worker = await worker_of(store)
        assert (worker.status, worker.last_busy_time) == ("busy", clock.now())
        assert worker.current_rollout_id == started.rollout_id
        assert worker.current_attempt_id == started.attempt.attempt_id
        await clock.advance(LEASE_SECONDS)
        assert await rollout_status(store, started.rollout_id) == "requeuing"

    async def test_an_old_attempt_does_not_touch_what_its_worker_does_now(self, store: LightningStore) -> None:
        old = await begin(store, worker_id="w-1")
        await store.start_attempt(old.rollout_id, "w-2")
        now = await begin(store, worker_id="w-1")
        for change in ({"metadata": {"a": 1}}, {"status": "running"}, {"status": "failed"}):
            await store.update_attempt(old.rollout_id, old.attempt.attempt_id, **change)
            worker = await worker_of(store)
            assert (worker.status, worker.current_attempt_id) == ("busy", now.attempt.attempt_id)

    @pytest.mark.parametrize("old_sends_heartbeats", [True, False])
    async def test_an_attempt_that_gets_another_worker_releases_the_one_it_had(
        self, store: LightningStore, clock: FakeClock, old_sends_heartbeats: bool
    ) -> None:
        if old_sends_heartbeats:
            await store.update_worker("w-1")
        started = await begin(store, worker_id="w-1")
        handed = await store.update_attempt(started.rollout_id, "latest", worker_id="w-2", request_id="r-1")
        assert handed.worker_id == "w-2"
        old, new = await worker_of(store, "w-1"), await worker_of(store, "w-2")
        assert (old.status, old.current_rollout_id, old.current_attempt_id) == ("unknown", None, None)
        assert (new.status, new.current_attempt_id) == ("busy", started.attempt.attempt_id)
        next_one = await begin(store, worker_id="w-1")
        await store.update_attempt(started.rollout_id, "latest", worker_id="w-2", request_id="r-1")
        assert (await worker_of(store, "w-1")).current_attempt_id == next_one.attempt.attempt_id
        # The old worker's lease is not for a worker that sends no heartbeats.
        await clock.advance(LEASE_SECONDS)
        assert await rollout_status(store, started.rollout_id) == "preparing"

    async def test_workers_are_queried_in_the_order_of_their_appearance(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        for name in ("w-b", "w-a", "x-c"):
            await store.update_worker(name)
            await clock.advance(1)
        await begin(store, worker_id="w-a")

        async def found(**query: Any) -> list[str]:
            return [worker.worker_id for worker in await store.query_workers(**query)]

        assert await found() == ["w-b", "w-a", "x-c"]
        assert await found(status_in=["busy"]) == ["w-a"]
        assert await found(worker_id_contains="w-", status_in=["unknown"]) == ["w-b"]
        assert await found(worker_id_contains="x-", status_in=["busy"], filter_logic="or") == ["w-a", "x-c"]
        assert await found(sort_by="worker_id") == ["w-a", "w-b", "x-c"]
        assert await found(sort_by="last_heartbeat_time", sort_order="desc", limit=2) == ["x-c", "w-a"]
        assert await found(sort_by="last_busy_time") == ["w-b", "x-c", "w-a"]
        with pytest.raises(InvalidRequest, match=r"cannot sort Workers by 'worker'.*Did you mean 'worker_id'"):
            await found(sort_by="worker")
        with pytest.raises(InvalidRequest, match="status_in has 'asleep'; it takes 'idle', 'busy', 'unknown'"):
            await found(status_in=["asleep"])

    async def test_state_is_kept_by_name(self, store: LightningStore) -> None:
        assert await store.load_state("apo") is None
        await store.save_state("apo", {"round": 1, "beam": [{"text": "a", "score": 0.5}], "best": None})
        await store.save_state("other", [1])
        await store.save_state("apo", {"round": 2})
        assert await store.load_state("apo") == {"round": 2}
        assert await store.load_state("other") == [1]

    @pytest.mark.parametrize("state", [{"a": float("nan")}, {"a": {1, 2}}, object()], ids=["nan", "set", "object"])
    async def test_state_that_json_cannot_hold_is_refused(self, store: LightningStore, state: Any) -> None:
        await store.save_state("apo", {"round": 1})
        with pytest.raises(InvalidRequest, match="the state of 'apo' cannot be saved as JSON"):
            await store.save_state("apo", state)
        assert await store.load_state("apo") == {"round": 1}
