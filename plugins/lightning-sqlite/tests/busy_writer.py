"""Works with a store until it is killed, and prints a line for everything that the store has acknowledged."""

import asyncio
import json
import os
import sys

from lightning_sqlite import SqliteLightningStore

from lightning_core.types import Span


def acknowledged(what: str, **facts: object) -> None:
    os.write(1, (json.dumps({"what": what, **facts}) + "\n").encode())


async def work(store: SqliteLightningStore, worker_id: str) -> None:
    while True:
        queued = await store.enqueue_rollout({"by": worker_id}, request_id=f"{worker_id}-{os.urandom(4).hex()}")
        acknowledged("enqueued", rollout=queued.rollout_id)
        await store.update_worker(worker_id)
        claimed = await store.dequeue_rollout(worker_id)
        assert claimed is not None
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        acknowledged("claimed", rollout=rollout_id, attempt=attempt_id)
        spans = [
            Span.from_attributes(attributes={"n": n}, rollout_id=rollout_id, attempt_id=attempt_id) for n in (1, 2)
        ]
        for span in await store.add_many_spans(spans):
            acknowledged("span", rollout=rollout_id, span=span.span_id, sequence=span.sequence_id)
        await store.update_attempt(rollout_id, attempt_id, status="succeeded")
        acknowledged("succeeded", rollout=rollout_id)
        await store.save_state(worker_id, {"last": rollout_id})
        acknowledged("state", name=worker_id, last=rollout_id)


async def main(path: str) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    await asyncio.gather(*(work(store, f"w-{number}") for number in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
