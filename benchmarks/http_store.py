"""What the store over HTTP can do: server and clients in processes of their own, on the same machine; a line a figure.

A rollout is enqueued, claimed, given 10 spans in one request, and reported as succeeded: four requests. CPU seconds are
those of both processes, so that a figure can be judged on a machine that does other things, too. agentlightning's
server and client go through the same cycle where they are installed; they add spans one by one.
"""

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from lightning_http import LightningStoreClient
from lightning_http.programs import Guard

from lightning_core.types import EnqueueRolloutRequest, Span

RUNNERS = (1, 8, 32)
ROLLOUTS = {1: 400, 8: 1_500, 32: 3_000}
PEER_ROLLOUTS = {1: 30, 8: 40, 32: 40}
SPANS_PER_ROLLOUT = 10
BULK_SPANS = 60_000
BULK_SIZE = 500
OTLP_SPANS = 30_000
OTLP_SIZE = 500
DEQUEUES = 3_000

# The clients of both projects have the same methods, so that one cycle serves both.
Store = Any


def spans_of(span_type: Any, rollout_id: str, attempt_id: str, count: int, *, are_numbered: bool = True) -> list[Any]:
    """Make the spans of one attempt, of the size that a small agent's have; without numbers, the store numbers them."""
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
            sequence_id=number if are_numbered else None,
            name="openai.chat.completion",
            start_time=1.0,
            end_time=2.0,
        )
        for number in range(1, count + 1)
    ]


def cpu_seconds(pid: int) -> float:
    """Return what a process has used; on systems without /proc nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve_peer(channel: Connection) -> None:
    """Serve agentlightning's memory store until the other end says something: the whole life of a server's process."""
    from agentlightning.store.client_server import (  # type: ignore[import-not-found]
        LightningStoreServer as PeerServer,
    )
    from agentlightning.store.memory import InMemoryLightningStore as PeerStore  # type: ignore[import-not-found]

    async def run() -> None:
        server = PeerServer(PeerStore(), "127.0.0.1", 45_747)
        await server.start()
        channel.send(server.endpoint)
        await asyncio.to_thread(channel.recv)
        await server.stop()

    asyncio.run(run())


async def run_rollouts(store: Store, span_type: Any, *, runners: int, rollouts: int) -> list[float]:
    """Bring rollouts through the cycle, so many at the same time.

    Returns:
        How long each dequeue took, in seconds.
    """
    numbers = iter(range(rollouts))
    seconds: list[float] = []

    async def runner(name: str) -> None:
        for number in numbers:
            await store.enqueue_rollout({"question": number})
            began = time.perf_counter()
            claimed = await store.dequeue_rollout(worker_id=name)
            seconds.append(time.perf_counter() - began)
            attempt_id = claimed.attempt.attempt_id
            await store.add_many_spans(spans_of(span_type, claimed.rollout_id, attempt_id, SPANS_PER_ROLLOUT))
            await store.update_attempt(claimed.rollout_id, attempt_id, status="succeeded")

    await asyncio.gather(*(runner(f"worker-{number}") for number in range(runners)))
    return seconds


class Bench:
    """One server, and what is measured against it."""

    def __init__(self, name: str, url: str, pid: int) -> None:
        self._name = name
        self._pid = pid
        self.url = url

    async def timed(self, work: Awaitable[Any]) -> tuple[float, str, Any]:
        """Return the wall seconds that it takes, and in words the CPU seconds of client and server."""
        own, others = time.process_time(), cpu_seconds(self._pid)
        began = time.perf_counter()
        result = await work
        seconds = time.perf_counter() - began
        client, server = time.process_time() - own, cpu_seconds(self._pid) - others
        return seconds, f"CPU seconds: client {client:.2f}, server {server:.2f}", result

    def say(self, figure: str) -> None:
        """Print a figure."""
        print(f"{self._name} http store: {figure}", flush=True)

    async def rollouts(self, make_store: Callable[[str], Store], span_type: Any, counts: dict[int, int]) -> None:
        """Measure whole rollouts."""
        store = make_store(self.url)
        await run_rollouts(store, span_type, runners=1, rollouts=10)  # first uses are slower
        for runners in RUNNERS:
            work = run_rollouts(store, span_type, runners=runners, rollouts=counts[runners])
            seconds, cpu, dequeues = await self.timed(work)
            p95 = statistics.quantiles(dequeues, n=20)[-1] * 1000
            self.say(
                f"{counts[runners] / seconds:,.0f} rollouts/s with {runners} runners "
                f"(10 spans; dequeue p95 {p95:.1f} ms; {cpu})"
            )
        await (store.aclose if hasattr(store, "aclose") else store.close)()

    async def bulk(self) -> None:
        """Measure spans in bulk."""
        async with LightningStoreClient(self.url, key="") as store:
            started = await store.start_rollout("bulk")
            batches = [
                spans_of(Span, started.rollout_id, started.attempt.attempt_id, BULK_SIZE)
                for _ in range(BULK_SPANS // BULK_SIZE)
            ]

            async def send(mine: list[list[Span]]) -> None:
                for batch in mine:
                    await store.add_many_spans(batch)

            seconds, cpu, _ = await self.timed(asyncio.gather(*(send(batches[part::4]) for part in range(4))))
        self.say(f"{BULK_SPANS / seconds:,.0f} spans/s in bulk, {BULK_SIZE} a request ({cpu})")

    async def otlp(self) -> None:
        """Measure OTLP requests, which are made beforehand."""
        import aiohttp
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

        def pair(key: str, value: str | int) -> KeyValue:
            kind = "int_value" if isinstance(value, int) else "string_value"
            return KeyValue(key=key, value=AnyValue(**{kind: value}))  # type: ignore[arg-type]

        async with LightningStoreClient(self.url, key="") as store, aiohttp.ClientSession() as session:
            started = await store.start_rollout("otlp")
            bodies = []
            for _ in range(OTLP_SPANS // OTLP_SIZE):
                request = ExportTraceServiceRequest()
                group = request.resource_spans.add()
                group.resource.attributes.append(pair("agentlightning.rollout_id", started.rollout_id))
                group.resource.attributes.append(pair("agentlightning.attempt_id", started.attempt.attempt_id))
                scope = group.scope_spans.add()
                for span in spans_of(Span, "", "", OTLP_SIZE):
                    scope.spans.add(
                        trace_id=bytes.fromhex(span.trace_id),
                        span_id=bytes.fromhex(span.span_id),
                        name=span.name,
                        start_time_unix_nano=1_000_000_000,
                        end_time_unix_nano=2_000_000_000,
                        attributes=[pair(key, value) for key, value in span.attributes.items()],
                    )
                bodies.append(request.SerializeToString())

            async def send(mine: list[bytes]) -> None:
                for body in mine:
                    headers = {"content-type": "application/x-protobuf"}
                    async with session.post(f"{self.url}/v1/traces", data=body, headers=headers) as response:
                        if response.status != 200 or await response.read():
                            raise RuntimeError(f"the server answered {response.status}")

            await send(bodies[:1])
            seconds, cpu, _ = await self.timed(asyncio.gather(*(send(bodies[part::4]) for part in range(4))))
        self.say(f"{OTLP_SPANS / seconds:,.0f} spans/s by OTLP, {OTLP_SIZE} a request ({cpu})")

    async def waiting_dequeues(self) -> None:
        """Measure how soon 32 waiting runners get what is enqueued."""
        async with LightningStoreClient(self.url, key="") as store:
            delays: list[float] = []

            async def runner() -> None:
                while (claimed := await store.dequeue_rollout(wait_seconds=None)) is not None:
                    if claimed.input is None:
                        return
                    delays.append(time.perf_counter() - claimed.input)

            runners = [asyncio.create_task(runner()) for _ in range(32)]
            for _ in range(DEQUEUES // 32):
                requests = [EnqueueRolloutRequest(input=time.perf_counter()) for _ in range(32)]
                await store.enqueue_many_rollouts(requests)
                await asyncio.sleep(0.05)
            await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=None) for _ in range(32)])
            await asyncio.gather(*runners)
        p95 = statistics.quantiles(delays, n=20)[-1] * 1000
        self.say(f"from enqueue to claim, 32 waiting runners, 32 at once: p95 {p95:.1f} ms")


@contextmanager
def agl_store(*options: str) -> Iterator[tuple[str, int]]:
    """Run `agl serve store` with these options, on a free port; give its address and the id of its process."""
    command = [sys.executable, "-m", "lightning_core", "store", "--port", "0", "--drain-seconds", "0", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGL_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, process_group=0) as process:
        assert process.stdout is not None
        guard = Guard()  # that it ends with this process, however this one ends
        guard.protect(process.pid)
        try:
            yield (
                next(word for line in process.stdout for word in line.split() if word.startswith("http://")),
                process.pid,
            )
        finally:
            guard.release()
            process.terminate()


@contextmanager
def our_server() -> Iterator[Bench]:
    """Run `agl serve store`, and print how long it takes from the command to the first answer."""
    begin = time.perf_counter()
    with agl_store() as (url, pid):
        with urllib.request.urlopen(f"{url}/v1/agl/health") as answer:
            answer.read()
        bench = Bench("lightning-core", url, pid)
        bench.say(f"server start {time.perf_counter() - begin:.2f} s")
        yield bench


@contextmanager
def peers_server() -> Iterator[Bench]:
    """Run agentlightning's server."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=serve_peer, args=(there,))
    begin = time.perf_counter()
    process.start()
    bench = Bench("agentlightning", here.recv(), process.pid or 0)
    bench.say(f"server start {time.perf_counter() - begin:.2f} s")
    try:
        yield bench
    finally:
        here.send("stop")
        process.join()


def main() -> None:
    """Measure our server, and the peer's where it is installed."""
    with our_server() as bench:
        asyncio.run(bench.rollouts(lambda url: LightningStoreClient(url, key=""), Span, ROLLOUTS))
        asyncio.run(bench.waiting_dequeues())
        asyncio.run(bench.bulk())
        asyncio.run(bench.otlp())
    try:
        from agentlightning.store.client_server import (
            LightningStoreClient as PeerClient,
        )
        from agentlightning.types import Span as PeerSpan  # type: ignore[import-not-found]
    except ImportError as exc:
        print(f"agentlightning http store: skipped, not installed ({exc})")
        return
    with peers_server() as bench:
        asyncio.run(bench.rollouts(PeerClient, PeerSpan, PEER_ROLLOUTS))


if __name__ == "__main__":
    main()
