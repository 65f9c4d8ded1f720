"""As much as a real run has: nothing is lost, doubled or left behind when there is a lot of everything."""

import asyncio

from lightning_core.store import LightningStore
from lightning_core.testing.store.base import StoreBehaviour, span_of
from lightning_core.types import EnqueueRolloutRequest

ROLLOUTS = 1_000
WORKERS = 16
BATCH = 200


class LoadBehaviour(StoreBehaviour):
    """A thousand rollouts, done by workers that claim at the same time."""

    async def test_each_of_a_thousand_rollouts_is_done_once(self, store: LightningStore) -> None:
        queued = [
            rollout.rollout_id
            for first in range(0, ROLLOUTS, BATCH)
            for rollout in await store.enqueue_many_rollouts(
                [EnqueueRolloutRequest(input=index) for index in range(first, first + BATCH)]
            )
        ]
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=queued))
        claims: list[list[str]] = []

        async def work(worker_id: str) -> None:
            while batch := await store.dequeue_many_rollouts(limit=25, worker_id=worker_id):
                claims.append([claimed.rollout_id for claimed in batch])
                await store.add_many_spans([span_of(claimed, str(claimed.input)) for claimed in batch])
                for claimed in batch:
                    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")

        await asyncio.gather(*(work(f"w-{number}") for number in range(WORKERS)))

        place = {rollout_id: number for number, rollout_id in enumerate(queued)}
        assert len(place) == ROLLOUTS
        assert sorted(rollout_id for batch in claims for rollout_id in batch) == sorted(queued)
        assert all([place[one] for one in batch] == sorted(place[one] for one in batch) for batch in claims)
        ended = await waiting
        assert [rollout.rollout_id for rollout in ended] == queued
        assert {rollout.status for rollout in ended} == {"succeeded"}

        pages = [
            await store.query_rollouts(limit=BATCH, offset=first, status_in=["succeeded"])
            for first in range(0, ROLLOUTS, BATCH)
        ]
        assert [rollout.rollout_id for page in pages for rollout in page] == queued
        assert {page.total for page in pages} == {ROLLOUTS}
        for number in range(0, ROLLOUTS, 97):
            assert [span.name for span in await store.query_spans(queued[number])] == [str(number)]
        held = await store.statistics()
        assert (held["total_rollouts"], held["total_attempts"], held["total_spans"]) == (ROLLOUTS,) * 3
