"""The final reward of an attempt, which the store keeps in its metadata."""

import pytest

from lightning_core.emitter import emit_reward, find_final_reward
from lightning_core.rewards import FINAL_REWARD, as_reported, final_reward_in
from lightning_core.store import LightningStore
from lightning_core.testing.store.base import StoreBehaviour, begin, span_of
from lightning_core.types import AttemptedRollout, Span


def reward_of(of: AttemptedRollout, value: float, *, sequence_id: int = 0) -> Span:
    """Make a span with a reward."""
    return span_of(of, sequence_id=sequence_id, attributes=emit_reward(value, propagate=False).attributes)


async def check(store: LightningStore, of: AttemptedRollout, value: float | None) -> None:
    """Check what the attempt's metadata tell, and that its spans tell the same."""
    attempt = await store.get_latest_attempt(of.rollout_id)
    assert attempt is not None
    assert final_reward_in(attempt.metadata) == value
    assert find_final_reward(await store.query_spans(of.rollout_id, "latest")) == value


class RewardBehaviour(StoreBehaviour):
    """An attempt's metadata have the reward that counts."""

    async def test_the_final_reward_is_that_of_the_last_span_that_has_one(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_many_spans([reward_of(started, 0.25), span_of(started)])
        await check(store, started, 0.25)
        await store.add_many_spans([reward_of(started, 0.5, sequence_id=9), reward_of(started, 1.0, sequence_id=8)])
        await check(store, started, 0.5)
        await store.add_span(as_reported(reward_of(started, 2.0)))
        await check(store, started, 0.5)

    async def test_a_reward_that_was_reported_counts_where_the_runner_has_none(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(as_reported(reward_of(started, 0.25)))
        await check(store, started, 0.25)
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.add_span(as_reported(reward_of(started, 0.5)))
        await check(store, started, 0.25)

    async def test_a_reward_of_a_judge_counts_after_the_end(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(reward_of(started, 0.25))
        await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        await store.add_span(reward_of(started, 0.5))
        await check(store, started, 0.5)
        silent = await begin(store)
        await store.update_attempt(silent.rollout_id, "latest", status="succeeded")
        await store.add_span(reward_of(silent, 1.0))
        await check(store, silent, 1.0)

    async def test_the_final_reward_stays_where_metadata_are_replaced(self, store: LightningStore) -> None:
        started = await begin(store)
        await store.add_span(reward_of(started, 0.25))
        ids = started.rollout_id, started.attempt.attempt_id
        mine = {FINAL_REWARD: {"value": 9.0, "sequence_id": 99, "reported": False}}
        attempt = await store.update_attempt(*ids, metadata={"note": 1, **mine})
        assert attempt.metadata is not None
        assert attempt.metadata["note"] == 1
        await store.update_attempt(*ids, add_metadata=mine)
        await check(store, started, 0.25)

    @pytest.mark.parametrize("sequence_id", [0, 1])
    async def test_a_delivery_that_is_repeated_leaves_the_reward_true(
        self, store: LightningStore, sequence_id: int
    ) -> None:
        started = await begin(store)
        first = reward_of(started, 0.25, sequence_id=sequence_id)
        for span in (first, reward_of(started, 0.5, sequence_id=sequence_id and 2), first):
            await store.add_span(span)
        attempt = await store.get_latest_attempt(started.rollout_id)
        assert attempt is not None
        # Which number a span has that the store numbered earlier is not known here: then the spans tell.
        assert final_reward_in(attempt.metadata) == (0.5 if sequence_id else None)

    @pytest.mark.parametrize("value", ["1" + "0" * 400, "NaN", "null", '"much"', "[" * 500 + "]" * 500])
    async def test_a_reward_that_is_no_number_is_kept_and_fails_nothing(
        self, store: LightningStore, value: str
    ) -> None:
        started = await begin(store)
        broken = span_of(started, attributes={"agentops.entity.output": f'{{"type": "reward", "value": {value}}}'})
        assert await store.add_many_spans([broken, reward_of(started, 0.25)])
        attempt = await store.update_attempt(started.rollout_id, "latest", status="succeeded")
        assert final_reward_in(attempt.metadata) == (0.25 if value == "null" else None)
        assert len(await store.query_spans(started.rollout_id, "latest")) == 2

    async def test_an_output_nested_too_deep_to_be_read_is_no_reward(self, store: LightningStore) -> None:
        started = await begin(store)
        deep = '{"reward": ' + "[" * 100_000 + "]" * 100_000 + "}"
        await store.add_many_spans(
            [reward_of(started, 0.25), span_of(started, attributes={"agentops.entity.output": deep})]
        )
        await check(store, started, 0.25)

    @pytest.mark.parametrize("mine", [0.7, None, {}, {"value": 0.7}])
    async def test_metadata_of_a_similar_name_are_the_users(self, store: LightningStore, mine: object) -> None:
        started = await begin(store)
        ids = started.rollout_id, started.attempt.attempt_id
        await store.update_attempt(*ids, metadata={"final_reward": mine})
        await check(store, started, None)
        await store.add_span(reward_of(started, 0.25))
        await check(store, started, 0.25)
        attempt = await store.get_latest_attempt(started.rollout_id)
        assert attempt is not None
        assert (attempt.metadata or {})["final_reward"] == mine
