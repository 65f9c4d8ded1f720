"""What a rollout costs in the memory store: CPU time and memory, a line a figure.

The cycle is enqueue, dequeue, add 10 spans, succeed, query the spans. What the garbage collector costs meanwhile
belongs to it; what earlier measurements left behind is collected before. A small size is measured several times, and
the median counts. agentlightning's memory store goes through the same cycle where it is installed. Then each operation
by itself, at a tenth of the rollouts and at all of them: a cost that grows with their number would show.
"""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from http_store import spans_of

from lightning_core.store import InMemoryLightningStore
from lightning_core.store.clock import SystemClock
from lightning_core.types import EnqueueRolloutRequest, RolloutConfig, Span

SPANS_PER_ROLLOUT = 10
SIZES = (1_000, 100_000)
LEAST_ROLLOUTS = 10_000
"""How many rollouts a figure is made of at least."""
OPERATION_SIZES = (1_000, 10_000)
PEER_SIZE = 1_000
MEMORY_SIZE = 1_000

# The stores of both projects have the same methods, so that one cycle serves both.
Store = Any


async def fill(store: Store, span_type: Any, rollouts: int, *, with_spans: bool = True) -> float:
    """Bring this many rollouts through the cycle.

    Returns:
        The CPU seconds that the store took; making the spans is not counted.
    """
    seconds = 0.0
    for number in range(rollouts):
        began = time.process_time()
        await store.enqueue_rollout({"question": number})
        claimed = await store.dequeue_rollout(worker_id="worker-1")
        seconds += time.process_time() - began
        spans = (
            spans_of(span_type, claimed.rollout_id, claimed.attempt.attempt_id, SPANS_PER_ROLLOUT) if with_spans else []
        )
        began = time.process_time()
        await store.add_many_spans(spans)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        found = await store.query_spans(claimed.rollout_id)
        seconds += time.process_time() - began
        if len(found) != len(spans):
            raise RuntimeError(f"rollout {claimed.rollout_id} has {len(found)} spans instead of {len(spans)}")
    return seconds


class MovableClock(SystemClock):
    """The machine's clock, put forward by hand."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def time_operations(rollouts: int) -> dict[str, float]:
    """Bring this many rollouts together through one operation after the other.

    Returns:
        Operation -> CPU microseconds a rollout.
    """
    clock = MovableClock()
    store = InMemoryLightningStore(clock=clock)
    costs: dict[str, float] = {}

    async def timed(name: str, work: Awaitable[Any]) -> Any:
        began = time.process_time()
        result = await work
        costs[name] = (time.process_time() - began) * 1e6 / rollouts
        return result

    async def each(call: Callable[[Any], Awaitable[Any]], over: Iterable[Any]) -> list[Any]:
        return [await call(item) for item in over]

    retry = RolloutConfig(timeout_seconds=1e6, max_attempts=2, retry_condition=["failed"])
    requests = [EnqueueRolloutRequest(input=number, config=retry) for number in range(rollouts)]
    queued = await timed("enqueue_many_rollouts", store.enqueue_many_rollouts(requests, request_id="all"))
    await timed("the same request again", store.enqueue_many_rollouts(requests, request_id="all"))
    ids = [rollout.rollout_id for rollout in queued]
    workers = [f"worker-{number}" for number in range(rollouts)]
    await timed("first heartbeats", each(store.update_worker, workers))
    await timed(
        "dequeue_rollout, leased", each(lambda worker: store.dequeue_rollout(worker, request_id=worker), workers)
    )
    claimed = await timed(
        "the same requests again", each(lambda worker: store.dequeue_rollout(worker, request_id=worker), workers)
    )
    await timed("heartbeats", each(store.update_worker, workers))
    spans = [spans_of(Span, item.rollout_id, item.attempt.attempt_id, SPANS_PER_ROLLOUT)[0] for item in claimed]
    await timed("add_span", each(store.add_span, spans))
    clock.ahead += 60
    await timed("all leases lost at once", store.dequeue_rollout())
    claimed = await timed("dequeue_many_rollouts", store.dequeue_many_rollouts(limit=rollouts))
    await timed(
        "report_fault",
        each(lambda item: store.report_fault(item.rollout_id, item.attempt.attempt_id, "gone"), claimed),
    )
    claimed = await store.dequeue_many_rollouts(limit=rollouts)
    await timed(
        "update_attempt, failed",
        each(lambda item: store.update_attempt(item.rollout_id, item.attempt.attempt_id, status="failed"), claimed),
    )
    await timed("start_attempt", each(store.start_attempt, ids))
    waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
    await asyncio.sleep(0)
    await timed(
        "update_rollout, waited for", each(lambda rollout_id: store.update_rollout(rollout_id, status="cancelled"), ids)
    )
    await timed("wait_for_rollouts", waiter)
    await timed("query_rollouts", store.query_rollouts())
    await timed("delete_rollouts", each(lambda rollout_id: store.delete_rollouts([rollout_id]), ids))
    await store.aclose()
    return costs


def measure_operations() -> None:
    """Print what each operation costs, at each size."""
    by_size = {}
    for size in OPERATION_SIZES:
        gc.collect()
        by_size[size] = asyncio.run(time_operations(size))
    for name in by_size[OPERATION_SIZES[0]]:
        figures = ", ".join(f"{costs[name]:,.0f} at {size:,}" for size, costs in by_size.items())
        print(f"lightning-core memory store: {name}: CPU microseconds a rollout: {figures} rollouts", flush=True)


def held_bytes(make: Callable[[], Any]) -> int:
    """Return the memory that is held because of what `make` returns."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def filled(store_type: Any, span_type: Any, *, with_spans: bool = True) -> Store:
    """Return a store with `MEMORY_SIZE` rollouts."""
    store = store_type()
    asyncio.run(fill(store, span_type, MEMORY_SIZE, with_spans=with_spans))
    return store


def measure(name: str, store_type: Any, span_type: Any, sizes: tuple[int, ...]) -> None:
    """Print the figures of one store."""
    asyncio.run(fill(store_type(), span_type, 100))  # first uses are slower
    for size in sizes:
        rates: list[float] = []
        while len(rates) * size < LEAST_ROLLOUTS:
            gc.collect()
            rates.append(size / asyncio.run(fill(store_type(), span_type, size)))
        rate = statistics.median(rates)
        print(f"{name} store: {rate:,.0f} rollouts per CPU second at {size:,} rollouts", flush=True)
    spans = held_bytes(
        lambda: [
            spans_of(span_type, f"ro-{number:016x}", f"at-{number:016x}", SPANS_PER_ROLLOUT)
            for number in range(MEMORY_SIZE)
        ]
    )
    held = held_bytes(lambda: filled(store_type, span_type))
    print(
        f"{name} store: {held / MEMORY_SIZE:,.0f} bytes a rollout, {(held - spans) / MEMORY_SIZE:,.0f} beyond its "
        f"{SPANS_PER_ROLLOUT} spans as they were given",
        flush=True,
    )
    without = held_bytes(lambda: filled(store_type, span_type, with_spans=False)) / MEMORY_SIZE
    print(f"{name} store: {without:,.0f} bytes a rollout without spans", flush=True)


def main() -> None:
    """Measure our store, and the peer's where it is installed."""
    measure("lightning-core memory", InMemoryLightningStore, Span, SIZES)
    measure_operations()
    try:
        from agentlightning.store.memory import (  # type: ignore[import-not-found]
            InMemoryLightningStore as PeerStore,
        )
        from agentlightning.types import Span as PeerSpan  # type: ignore[import-not-found]
    except ImportError as exc:
        print(f"agentlightning memory store: skipped, not installed ({exc})")
        return
    measure("agentlightning memory", PeerStore, PeerSpan, (PEER_SIZE,))


if __name__ == "__main__":
    main()
