import pytest
from lightning_http.observed import ObservedStore

from lightning_core.errors import StoreClosed
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Attempt, AttemptedRollout

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Notes:
    def __init__(self) -> None:
        self.taken: list[str] = []

    async def began(self, rollout: AttemptedRollout) -> None:
        self.taken.append(f"began {rollout.input}")

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        assert rollout is not None
        self.taken.append(f"{rollout.input} {attempt.status}")


@pytest.fixture
def behind() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def store(behind: InMemoryLightningStore, notes: Notes) -> ObservedStore:
    return ObservedStore(behind, notes)


async def claim(store: ObservedStore, worker_id: str) -> AttemptedRollout:
    claimed = await store.dequeue_rollout(worker_id)
    assert claimed is not None
    return claimed


async def test_observer_is_told_of_claims_and_once_of_each_report(store: ObservedStore, notes: Notes):
    await store.enqueue_rollout("a")
    await store.enqueue_rollout("b")
    first, second = await claim(store, "w-1"), await claim(store, "w-2")
    for _ in range(2):
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    await store.update_attempt(second.rollout_id, second.attempt.attempt_id, last_heartbeat_time=1e12)
    await store.report_fault(second.rollout_id, second.attempt.attempt_id, "gone")
    assert notes.taken == ["began a", "began b", "a succeeded", "b failed"]


async def test_errors_of_the_store_go_through(store: ObservedStore, behind: InMemoryLightningStore):
    await behind.aclose()
    with pytest.raises(StoreClosed):
        await store.dequeue_rollout("w-1", wait_seconds=None)
