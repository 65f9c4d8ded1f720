"""Counting how the rollouts of a run ended."""

from lightning_core.runs import RolloutCounts, count_rollouts
from lightning_core.store.memory import InMemoryLightningStore
from lightning_core.types import Span


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
