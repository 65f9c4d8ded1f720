"""Many clients of a store, in one process: each brings rollouts through, and writes down what was acknowledged."""

import asyncio
import sys

from lightning_http import LightningStoreClient
from program import note

from lightning_core.types import Span

CLIENTS = 16


async def work(store: LightningStoreClient, name: str, rollouts: int) -> None:
    """Enqueue as many rollouts as are brought to their end; whose they are is left to chance."""
    for number in range(rollouts):
        queued = await store.enqueue_rollout({"by": name, "number": number})
        # Everybody has enqueued one before, so there is always one left.
        claimed = await store.dequeue_rollout(name, wait_seconds=None)
        assert claimed is not None
        note("claimed", claimed.attempt, enqueued=queued.rollout_id)
        ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        spans = [Span.from_attributes(attributes={"by": name}, name=f"span {n}", **ids) for n in range(3)]
        await store.add_many_spans(spans)
        note("spans", claimed.attempt, spans=[span.span_id for span in spans])
        attempt = await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        note("reported", attempt, status=attempt.status, spans=[])
        await store.save_state(name, number)


async def main(url: str, process: str, rollouts: int) -> None:
    async with LightningStoreClient(url) as store, asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(work(store, f"{process}-{number}", rollouts))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
