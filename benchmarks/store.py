"""What a rollout costs in the memory store: CPU time and memory, a line a figure.

The cycle is enqueue, dequeue, add 10 spans, succeed, query the spans. agentlightning's memory store goes through the
same cycle where it is installed.
"""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import Span

SPANS_PER_ROLLOUT = 10
SIZES = (1_000, 20_000)
PEER_SIZE = 1_000
MEMORY_SIZE = 1_000

# The stores of both projects have the same methods, so that one cycle serves both.
Store = Any


def spans_of(span_type: Any, rollout_id: str, attempt_id: str) -> list[Any]:
    """Make the spans of one attempt, of the size that a small agent's have."""
    attributes = {
        "gen_ai.system": "openai",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
    }
    return [
        span_type.from_attributes(
            attributes=attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number,
            name="openai.chat.completion",
            start_time=1.0,
            end_time=2.0,
        )
        for number in range(1, SPANS_PER_ROLLOUT + 1)
    ]


async def fill(store: Store, span_type: Any, rollouts: int) -> float:
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
        spans = spans_of(span_type, claimed.rollout_id, claimed.attempt.attempt_id)
        began = time.process_time()
        await store.add_many_spans(spans)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        found = await store.query_spans(claimed.rollout_id)
        seconds += time.process_time() - began
        if len(found) != SPANS_PER_ROLLOUT:
            raise RuntimeError(f"rollout {claimed.rollout_id} has {len(found)} spans instead of {SPANS_PER_ROLLOUT}")
    return seconds


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


def filled(store_type: Any, span_type: Any) -> Store:
    """Return a store with `MEMORY_SIZE` rollouts."""
    store = store_type()
    asyncio.run(fill(store, span_type, MEMORY_SIZE))
    return store


def measure(name: str, store_type: Any, span_type: Any, sizes: tuple[int, ...]) -> None:
    """Print the figures of one store."""
    asyncio.run(fill(store_type(), span_type, 100))  # first uses are slower
    for size in sizes:
        seconds = asyncio.run(fill(store_type(), span_type, size))
        print(f"{name} store: {size / seconds:,.0f} rollouts per CPU second at {size:,} rollouts", flush=True)
    spans = held_bytes(
        lambda: [spans_of(span_type, f"ro-{number:016x}", f"at-{number:016x}") for number in range(MEMORY_SIZE)]
    )
    beyond = (held_bytes(lambda: filled(store_type, span_type)) - spans) / MEMORY_SIZE
    print(f"{name} store: {beyond:,.0f} bytes a rollout beyond its {SPANS_PER_ROLLOUT} spans", flush=True)


def main() -> None:
    """Measure our store, and the peer's where it is installed."""
    measure("lightning-core memory", InMemoryLightningStore, Span, SIZES)
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
