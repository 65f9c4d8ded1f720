"""Counting how the rollouts of a run ended."""

from lightning_core.runs import Failure, RolloutCounts, count_rollouts
from lightning_core.store.memory import InMemoryLightningStore


async def test_run_without_rollouts_has_nothing_to_count() -> None:
    assert await count_rollouts(InMemoryLightningStore()) == (RolloutCounts(), [])


async def test_rollouts_of_other_runs_do_not_count() -> None:
    store = InMemoryLightningStore()
    other = store.for_run("other")
    await other.enqueue_rollout("task")
    assert (await count_rollouts(store))[0] == RolloutCounts()
    assert (await count_rollouts(other))[0] == RolloutCounts(unfinished=1)


async def test_failures_without_a_recorded_cause_are_told_by_their_attempt() -> None:
    store = InMemoryLightningStore()
    started = [await store.start_rollout(number) for number in range(3)]
    for rollout in started[:2]:
        await store.update_attempt(rollout.rollout_id, "latest", status="timeout")
    await store.update_attempt(
        started[2].rollout_id,
        "latest",
        status="failed",
        metadata={"failure": {"type": "ValueError", "message": "no key"}},
    )
    counts, failures = await count_rollouts(store)
    assert counts == RolloutCounts(failed=3)
    assert failures == [
        Failure(
            "rollout failed, its last attempt timeout",
            2,
            started[0].rollout_id,
            "rollout failed, its last attempt timeout",
            0,
        ),
        Failure("ValueError: no key", 1, started[2].rollout_id, "ValueError: no key", 2),
    ]
