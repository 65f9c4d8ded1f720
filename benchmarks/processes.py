"""How fast the loop is with runner processes, a line a figure.

    python benchmarks/processes.py

An algorithm enqueues rollouts, runner processes run an agent that emits 10 messages and returns a reward, and the
algorithm reads the spans of each. Rates are the best of three, with the processor time that a rollout took in all
processes together, which other programs disturb less. The first rollout is timed from its enqueue to its agent's first
line, by the clock that all processes of a machine share; its median of 50.
"""

import asyncio
import os
import statistics
import time

import psutil  # type: ignore[import-untyped]
from lightning_http.pool import StartMethod
from lightning_http.processes import ProcessesStrategy

from lightning_core import Trainer, emit_message, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.store import LightningStore

MESSAGES = 10
SPANS_PER_ROLLOUT = MESSAGES + 1
ROLLOUTS = 1000
REPEATS = 3
LATENCIES = 50
SHAPES = ((1, 1), (2, 1), (4, 1), (4, 4), (2, 8))
TARGETS = {(4, 1): ", target: 250"}


@rollout
async def talkative(task: int) -> float:
    """An agent that does nothing but emit."""
    for number in range(MESSAGES):
        emit_message(f"step {number}")
    return float(task)


@rollout
async def costly(task: int) -> float:
    """An agent that says how much processor time its process has had."""
    return time.process_time()


@rollout
async def punctual(task: int) -> float:
    """An agent that says when it is called."""
    return time.monotonic()


async def runners_wait(store: LightningStore, count: int) -> None:
    """Return when so many runners have been here and look for work."""
    while sum(worker.last_heartbeat_time is not None for worker in await store.query_workers()) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await run_batch(store, range(4 * count), mode="val")


def cpu_seconds() -> float:
    """Return the processor time of this process and of those below it."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def measure_rate(n_runners: int, concurrency: int) -> tuple[float, float, float]:
    """Return rollouts a second, milliseconds of processor time for each, and seconds until all runners were there."""
    rates: list[tuple[float, float]] = []
    ready: list[float] = []
    began = time.perf_counter()

    @algo
    async def measure(store: LightningStore) -> None:
        await runners_wait(store, n_runners * concurrency)
        ready.append(time.perf_counter() - began)
        for _ in range(REPEATS):
            began_batch, cpu = time.perf_counter(), cpu_seconds()
            batch = await run_batch(store, range(ROLLOUTS), mode="train")
            rates.append(
                (ROLLOUTS / (time.perf_counter() - began_batch), (cpu_seconds() - cpu) * 1000 / ROLLOUTS),
            )
            if batch.rewards != [float(task) for task in range(ROLLOUTS)]:
                raise RuntimeError(f"{batch.lost} of {ROLLOUTS} rollouts gave no reward, or another one's")
            if any(len(outcome.spans) != SPANS_PER_ROLLOUT for outcome in batch.outcomes):
                raise RuntimeError(f"a rollout has not {SPANS_PER_ROLLOUT} spans")

    strategy = ProcessesStrategy(n_runners=n_runners, concurrency=concurrency)
    Trainer(algorithm=measure, strategy=strategy).fit(talkative)
    return *max(rates), ready[0]


def first_rollout_ms(start_method: StartMethod) -> tuple[float, float]:
    """Return the median time from an enqueue to the agent, and seconds from the start of a run to its first result."""
    latencies: list[float] = []
    first: list[float] = []
    began = time.perf_counter()

    @algo
    async def measure(store: LightningStore) -> None:
        await run_batch(store, [0], mode="val")
        first.append(time.perf_counter() - began)
        await runners_wait(store, 4)
        for task in range(LATENCIES):
            enqueued = time.monotonic()
            batch = await run_batch(store, [task], mode="train")
            latencies.append((batch.rewards[0] - enqueued) * 1000)
            await asyncio.sleep(0.05)  # until the runners wait again

    Trainer(algorithm=measure, strategy=ProcessesStrategy(n_runners=4, start_method=start_method)).fit(punctual)
    return statistics.median(latencies), first[0]


def start_cpu_seconds(start_method: StartMethod) -> float:
    """Return the processor time of a runner process until its first rollout, of four the median."""

    @algo
    async def measure(store: LightningStore) -> None:
        batch = await run_batch(store, range(4), mode="val")
        seconds.extend(batch.rewards)

    seconds: list[float] = []
    Trainer(algorithm=measure, strategy=ProcessesStrategy(n_runners=4, start_method=start_method)).fit(costly)
    return statistics.median(seconds)


def main() -> None:
    """Measure."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for n_runners, concurrency in SHAPES:
        rate, cpu_ms, ready = measure_rate(n_runners, concurrency)
        target = TARGETS.get((n_runners, concurrency), "")
        print(
            f"loop, {n_runners} processes x {concurrency}: {rate:,.0f} rollouts/s at {SPANS_PER_ROLLOUT} spans, "
            f"{cpu_ms:.2f} ms of CPU each, all runners there after {ready:.1f} s{target}",
            flush=True,
        )
    methods: tuple[StartMethod, ...] = ("spawn", "forkserver")
    for start_method in methods:
        latency, first = first_rollout_ms(start_method)
        print(
            f"{start_method}: {latency:.1f} ms from enqueue to the agent, target: under 50; "
            f"first result {first:.1f} s after the start of the run; "
            f"{start_cpu_seconds(start_method):.2f} s of CPU until a process has its first rollout, target: under 0.3",
            flush=True,
        )


if __name__ == "__main__":
    main()
