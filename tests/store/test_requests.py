"""What is particular to request ids in the memory store: how long they are remembered, and what that takes."""

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock

DAY = 24 * 3600


async def test_a_request_is_forgotten_after_a_day_and_many_newer_ones() -> None:
    clock = FakeClock()
    store = InMemoryLightningStore(clock=clock)
    for number in range(20):
        await store.save_state("apo", number, request_id=f"r-{number}")
    await clock.advance(DAY + 1)
    for number in range(20, 40):
        await store.save_state("apo", number, request_id=f"r-{number}")
    await store.save_state("apo", 31, request_id="r-31")
    assert await store.load_state("apo") == 39
    await store.save_state("apo", "anew", request_id="r-0")
    assert await store.load_state("apo") == "anew"


async def test_values_that_json_cannot_hold_can_be_asked_for_again() -> None:
    store = InMemoryLightningStore()
    task = {1: {"a", "b"}, "two": object()}
    first = await store.enqueue_rollout(task, request_id="r-1")
    assert (await store.enqueue_rollout(task, request_id="r-1")).rollout_id == first.rollout_id
