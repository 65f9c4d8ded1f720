"""What the MongoDB store takes in a second, beside SQLite and memory: a line a figure.

A mongod is started for it on this machine, once standalone and once as a replica set; it shares the processors with
the store and its callers. First claims, one rollout each, by 32 workers; then spans, 1,000 in a request. Then the
whole cycle (enqueue, claim, 10 spans in one request, succeed, read the spans) for 1, 8 and 32 runners. The best of
three tries counts: the machine may be busy. agentlightning's store goes through the same where it is installed.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from http_store import spans_of
from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import PACKAGE, Mongod, find_mongod
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import EnqueueRolloutRequest, Span

SPANS_PER_ROLLOUT = 10
CLAIMS = 1_000
SPANS = 10_000
SPANS_PER_REQUEST = 1_000
ROLLOUTS = 300
RUNNERS = (1, 8, 32)
TRIES = 3

# The stores of both projects have the same methods, so that one cycle serves both.
Store = Any


async def claims(store: Store) -> float:
    """Return how many rollouts a second are claimed, one at a time by each of 32 workers."""
    for _ in range(CLAIMS // 500):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(500)])

    async def work(worker_id: str) -> int:
        count = 0
        while await store.dequeue_rollout(worker_id) is not None:
            count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(work(f"worker-{number}") for number in range(32)))
    return sum(counts) / (time.perf_counter() - began)


async def spans(store: Store, span_type: Any) -> float:
    """Return how many spans a second are kept, in large requests; making them is not counted."""
    rollout = await store.start_rollout("spans")
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    made = [spans_of(span_type, *ids, SPANS_PER_REQUEST, are_numbered=False) for _ in range(SPANS // SPANS_PER_REQUEST)]
    began = time.perf_counter()
    for request in made:
        await store.add_many_spans(request)
    return SPANS / (time.perf_counter() - began)


async def cycles(store: Store, span_type: Any, runners: int) -> float:
    """Return how many rollouts a second so many runners bring through together, their spans read."""
    numbers: Iterator[int] = iter(range(ROLLOUTS))
    making = 0.0

    async def run(worker_id: str) -> None:
        nonlocal making
        for number in numbers:
            await store.enqueue_rollout({"question": number})
            claimed = await store.dequeue_rollout(worker_id)
            began = time.perf_counter()
            ids = (claimed.rollout_id, claimed.attempt.attempt_id)
            own = spans_of(span_type, *ids, SPANS_PER_ROLLOUT, are_numbered=False)
            making += time.perf_counter() - began
            await store.add_many_spans(own)
            await store.update_attempt(*ids, status="succeeded")
            if len(await store.query_spans(claimed.rollout_id)) != SPANS_PER_ROLLOUT:
                raise RuntimeError(f"rollout {claimed.rollout_id} lacks spans")

    began = time.perf_counter()
    await asyncio.gather(*(run(f"runner-{number}") for number in range(runners)))
    return ROLLOUTS / (time.perf_counter() - began - making)


async def measure(name: str, make: Callable[[], Store], span_type: Any = Span) -> None:
    """Print the figures of one store."""

    async def best(work: Callable[[Store], Awaitable[float]]) -> float:
        figures = []
        for _ in range(TRIES):
            store = make()
            try:
                figures.append(await work(store))
            finally:
                await store.aclose()
        return max(figures)

    print(f"{name}: {await best(claims):,.0f} claims/s by 32 workers", flush=True)
    print(f"{name}: {await best(lambda store: spans(store, span_type)):,.0f} spans/s, 1,000 a request", flush=True)
    for runners in RUNNERS:
        rate = await best(lambda store, runners=runners: cycles(store, span_type, runners))  # type: ignore[misc]
        print(f"{name}: {rate:,.0f} rollouts/s through, and their spans read, at {runners} runners", flush=True)


async def measure_peer(uri: str) -> None:
    """Print the figures of agentlightning's store, where it is installed."""
    try:
        from agentlightning.store.mongo import MongoLightningStore as PeerStore  # type: ignore[import-not-found]
        from agentlightning.types import Span as PeerSpan  # type: ignore[import-not-found]
    except ImportError as exc:
        print(f"agentlightning-mongo: skipped, not installed ({exc})")
        return
    numbers = iter(range(1_000))

    def make() -> Store:
        return PeerStore(mongo_uri=f"{uri}/?replicaSet=rs0", partition_id=f"peer-{next(numbers)}")

    await measure("agentlightning-mongo, replica set", make, PeerSpan)


async def measure_all(folder: Path) -> None:
    """Print the figures of all stores."""
    numbers = iter(range(1_000))
    await measure("lightning-core memory", InMemoryLightningStore)
    await measure("lightning-sqlite", lambda: SqliteLightningStore(folder / f"{next(numbers)}.sqlite"))
    if find_mongod() is None:
        print(f"lightning-mongo: skipped, there is no mongod; {PACKAGE} has one")
        return
    for replica_set, kind in ((False, "standalone"), (True, "replica set")):
        with Mongod(folder / kind, replica_set=replica_set) as mongod:
            await measure(f"lightning-mongo, {kind}", partial(_opened, mongod.uri, numbers))
            if replica_set:
                await measure_peer(mongod.uri)


def _opened(uri: str, numbers: Iterator[int]) -> MongoLightningStore:
    return MongoLightningStore(uri, partition_id=f"p{next(numbers)}")


def main() -> None:
    """Measure in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="lightning-mongo-") as name:
        asyncio.run(measure_all(Path(name)))


if __name__ == "__main__":
    main()
