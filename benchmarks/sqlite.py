"""What the SQLite store takes in a second, and on disk: a line a figure.

A rollout is enqueued, claimed by a worker, given 10 spans in one request, and succeeds; then its spans are read. That
is measured by the clock, for one caller and for 32 at once, in a store that is new and in one that holds 100,000
rollouts already; at last pages of that. Client and store share this process. The best of three tries counts: the
machine may be busy.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_sqlite import SqliteLightningStore

from lightning_core.types import EnqueueRolloutRequest, Span

SPANS_PER_ROLLOUT = 10
ROLLOUTS = 1_000
HELD = 100_000
CALLERS = (1, 32)
PAGES: dict[str, dict[str, Any]] = {
    "the first": {},
    "far behind": {"offset": HELD * 9 // 10},
    "the newest": {"sort_by": "start_time", "sort_order": "desc"},
    "the newest of one status": {"status_in": ["succeeded"], "sort_by": "start_time", "sort_order": "desc"},
    "of a status that none has": {"status_in": ["failed"]},
}
WARM_UP = 200
TRIES = 3


def spans_of(rollout_id: str, attempt_id: str) -> list[Span]:
    """Make the spans of one attempt, of the size that a small agent's have; the store numbers them."""
    attributes: dict[str, str | int] = {
        "gen_ai.system": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
    }
    return [
        Span.from_attributes(
            attributes=attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            name="openai.chat.completion",
            start_time=1.0,
            end_time=2.0,
        )
        for _ in range(SPANS_PER_ROLLOUT)
    ]


async def bring_through(
    store: SqliteLightningStore, worker_id: str, numbers: Iterator[int], *, reads: bool
) -> tuple[float, float]:
    """Bring one rollout after the other through the store, as long as there are numbers.

    Returns:
        The seconds that making the spans took, by the clock and of CPU time: they are not the store's work.
    """
    making, making_cpu = 0.0, 0.0
    for number in numbers:
        await store.enqueue_rollout({"question": number})
        claimed = await store.dequeue_rollout(worker_id)
        assert claimed is not None
        began, cpu = time.perf_counter(), time.thread_time()
        spans = spans_of(claimed.rollout_id, claimed.attempt.attempt_id)
        making, making_cpu = making + time.perf_counter() - began, making_cpu + time.thread_time() - cpu
        await store.add_many_spans(spans)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        if reads and len(await store.query_spans(claimed.rollout_id)) != SPANS_PER_ROLLOUT:
            raise RuntimeError(f"rollout {claimed.rollout_id} lacks spans")
    return making, making_cpu


async def rate(store: SqliteLightningStore, callers: int, *, reads: bool) -> tuple[float, float]:
    """Let this many callers bring rollouts through together.

    Returns:
        How many in a second, and the milliseconds of CPU time that each took, of both threads.
    """
    numbers = iter(range(ROLLOUTS))
    began, cpu = time.perf_counter(), time.process_time()
    making = await asyncio.gather(
        *(bring_through(store, f"worker-{caller}", numbers, reads=reads) for caller in range(callers))
    )
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    seconds -= sum(wall for wall, _ in making)
    cpu_seconds -= sum(own for _, own in making)
    return ROLLOUTS / seconds, cpu_seconds * 1e3 / ROLLOUTS


async def fill(store: SqliteLightningStore, rollouts: int) -> None:
    """Bring this many rollouts through the store, in large requests."""
    for _ in range(rollouts // 1_000):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input={"question": n}) for n in range(1_000)])
        claimed = await store.dequeue_many_rollouts(limit=1_000)
        await store.add_many_spans(
            [span for item in claimed for span in spans_of(item.rollout_id, item.attempt.attempt_id)]
        )
        await asyncio.gather(
            *(store.update_attempt(item.rollout_id, item.attempt.attempt_id, status="succeeded") for item in claimed)
        )


async def measure(folder: Path) -> None:
    """Print the figures of a new store, and of one that holds much."""
    path = folder / "store.sqlite"
    store = SqliteLightningStore(path)
    await asyncio.gather(bring_through(store, "warm-up", iter(range(WARM_UP)), reads=True))  # first uses are slower
    for held in (0, HELD):
        if held:
            await fill(store, held)
        for reads, what in ((False, "through"), (True, "through, and their spans read,")):
            for callers in CALLERS:
                figure, cpu = max([await rate(store, callers, reads=reads) for _ in range(TRIES)])
                print(
                    f"lightning-sqlite: {figure:,.0f} rollouts/s {what} at {callers} callers, "
                    f"with {held:,} rollouts held before; {cpu:.2f} ms of CPU each",
                    flush=True,
                )
    kept = (await store.statistics())["total_rollouts"]
    await store.aclose()
    size = path.stat().st_size / kept
    print(f"lightning-sqlite: {size:,.0f} bytes on disk a rollout with {SPANS_PER_ROLLOUT} spans", flush=True)
    began = time.perf_counter()
    store = SqliteLightningStore(path)
    await store.query_rollouts(status_in=["queuing"], limit=10)
    print(f"lightning-sqlite: {time.perf_counter() - began:,.3f} s to open it again and find what waits", flush=True)
    for what, query in PAGES.items():
        times = []
        for _ in range(TRIES):
            began = time.perf_counter()
            await store.query_rollouts(limit=100, **query)
            times.append(time.perf_counter() - began)
        print(f"lightning-sqlite: {min(times) * 1e3:,.1f} ms for 100 of {kept:,} rollouts, {what}", flush=True)
    await store.aclose()


def main() -> None:
    """Measure in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="lightning-sqlite-") as name:
        asyncio.run(measure(Path(name)))


if __name__ == "__main__":
    main()
