"""How fast the whole loop is in one process and one event loop, a line a figure.

    python benchmarks/loop.py

An algorithm enqueues rollouts, runners run an agent that emits 10 messages and returns a reward, and the algorithm
reads the spans of each. Rates are the best of three, each after a full garbage collection, and with the processor time
that a rollout took, which other programs disturb less; latencies are the median. agentlightning runs the same agent
where it is installed, with one runner: with more in one process it mixes their spans up.
"""

import asyncio
import gc
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning_core import Trainer, algo, emit_message, rollout
from lightning_core.algorithm import run_batch
from lightning_core.store import LightningStore

MESSAGES = 10
SPANS_PER_ROLLOUT = MESSAGES + 1
ROLLOUTS = 1000
RUNNERS = (1, 8, 64, 256)
REPEATS = 3
LATENCIES = 50
PEER_ROLLOUTS = 200

TARGETS = {64: ", target: 600"}
MAX_LATENCY_MS = 10


@dataclass
class Rate:
    """How fast rollouts went."""

    per_second: float = 0.0
    cpu_ms: float = 0.0
    """Processor time of this process, for one rollout."""

    def __str__(self) -> str:
        return f"{self.per_second:,.0f} rollouts/s at {SPANS_PER_ROLLOUT} spans, {self.cpu_ms:.2f} ms of CPU each"

    @contextmanager
    def measured(self, rollouts: int) -> Iterator[None]:
        """Measure the block."""
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self.per_second = rollouts / (time.perf_counter() - began)
        self.cpu_ms = (time.process_time() - cpu_began) * 1000 / rollouts


def best(measure: Callable[..., Rate], *args: Any) -> Rate:
    """Measure some times, each time without the garbage of the one before, and return the fastest."""
    rates = []
    for _ in range(REPEATS):
        gc.collect()
        rates.append(measure(*args))
    return max(rates, key=lambda rate: rate.per_second)


@rollout
async def talkative(task: int) -> float:
    """An agent that does nothing but emit."""
    for number in range(MESSAGES):
        emit_message(f"step {number}")
    return float(task)


def our_rate(n_runners: int) -> Rate:
    """Run one batch, and read its results."""
    rate = Rate()

    @algo
    async def measure(store: LightningStore) -> None:
        with rate.measured(ROLLOUTS):
            batch = await run_batch(store, range(ROLLOUTS), mode="train")
        if batch.rewards != [float(task) for task in range(ROLLOUTS)]:
            raise RuntimeError(f"{batch.lost} of {ROLLOUTS} rollouts gave no reward, or another one's")
        for outcome in batch.outcomes:
            if len(outcome.spans) != SPANS_PER_ROLLOUT:
                raise RuntimeError(f"a rollout has {len(outcome.spans)} spans instead of {SPANS_PER_ROLLOUT}")

    Trainer(algorithm=measure, n_runners=n_runners).fit(talkative)
    return rate


def first_rollout_latencies_ms() -> list[float]:
    """Enqueue one rollout at a time while runners wait, and take the time until the agent is called."""
    latencies: list[float] = []
    enqueued = 0.0

    @rollout
    async def agent(task: int) -> None:
        latencies.append((time.perf_counter() - enqueued) * 1000)

    @algo
    async def measure(store: LightningStore) -> None:
        nonlocal enqueued
        for task in range(LATENCIES):
            await asyncio.sleep(0.002)  # until the runners wait again
            enqueued = time.perf_counter()
            queued = await store.enqueue_rollout(task)
            await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])

    Trainer(algorithm=measure, n_runners=8).fit(agent)
    return latencies


def peer_rate(peer: Any) -> Rate:
    """Run the same agent with agentlightning's runner, tracer and memory store."""

    @peer.rollout  # type: ignore[untyped-decorator]
    async def agent(task: int, prompt_template: Any) -> float:
        for number in range(MESSAGES):
            peer.emit_message(f"step {number}")
        return float(task)

    async def run() -> Rate:
        rate = Rate()
        store = peer.InMemoryLightningStore()
        await store.add_resources({"prompt": peer.PromptTemplate(template="", engine="f-string")})
        runner = peer.LitAgentRunner(tracer=peer.OtelTracer(), max_rollouts=PEER_ROLLOUTS)
        with runner.run_context(agent=agent, store=store), rate.measured(PEER_ROLLOUTS):
            for task in range(PEER_ROLLOUTS):
                await store.enqueue_rollout(task)
            await runner.iter()
            for each in await store.query_rollouts():
                spans = await store.query_spans(each.rollout_id)
                if len(spans) != SPANS_PER_ROLLOUT:
                    raise RuntimeError(f"a rollout has {len(spans)} spans instead of {SPANS_PER_ROLLOUT}")
        return rate

    return asyncio.run(run())


def main() -> None:
    """Measure our loop, and the peer's where it is installed."""
    for n_runners in RUNNERS:
        print(f"lightning-core loop, n_runners={n_runners}: {best(our_rate, n_runners)}{TARGETS.get(n_runners, '')}")
    latency = statistics.median(first_rollout_latencies_ms())
    print(f"lightning-core loop: {latency:.2f} ms from enqueue to first rollout, target: under {MAX_LATENCY_MS}")
    try:
        import agentlightning as peer  # type: ignore[import-not-found]
    except ImportError as exc:
        print(f"agentlightning loop: skipped, not installed ({exc})")
        return
    logging.getLogger("agentlightning").setLevel(logging.CRITICAL)
    print(f"agentlightning loop, one runner: {best(peer_rate, peer)}")


if __name__ == "__main__":
    main()
