"""Counting how the rollouts of a run ended."""

from lightning_core.runs import Failure, RolloutCounts, count_rollouts
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.types import Span


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


async def test_rollouts_that_succeeded_without_a_reward_are_counted() -> None:
    store = InMemoryLightningStore()
    for reward in (0.5, None, "high"):
        started = await store.start_rollout("task")
        if reward is not None:
            attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": reward}
            place = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
            await store.add_span(Span.from_attributes(name="scored", attributes=attributes, **place))
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    assert (await count_rollouts(store))[0] == RolloutCounts(succeeded=3, unrewarded=2)
