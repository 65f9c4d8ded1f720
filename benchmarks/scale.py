"""How far one store goes: the figures of docs/processes.md.

    python benchmarks/scale.py runners   # rollouts/s and claims against the number of runners, for each store
    python benchmarks/scale.py idle      # what 1,000 runners cost that wait for work
    python benchmarks/scale.py size      # the same questions to a store of 10,000 and of 100,000 rollouts
    python benchmarks/scale.py room      # what a run's traces need in memory and on disk, with keep_spans and without
    python benchmarks/scale.py           # all of them, in about ten minutes

`--quick` makes each part small; `--stores` and `--counts` choose what is measured. The runners, the algorithm's
`run_batch`, the client, and `agl serve store` are the real ones, in processes of their own on this machine; only the
agent is not, which waits and returns five spans. CPU seconds stand beside the clock's, since the machine may do other
things.
"""

import argparse
import asyncio
import gc
import logging
import multiprocessing
import os
import platform
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]
from http_store import agl_store, spans_of
from lightning_http import LightningStoreClient
from lightning_http.child import work_in_process
from lightning_mongo import MongoBackend, Settings
from lightning_mongo.testing import PACKAGE, Mongod, find_mongod
from lightning_sqlite.backend import SqliteBackend

from lightning_core import emit_reward, lifecycle, rollout
from lightning_core.algorithm import run_batch
from lightning_core.lifecycle import RolloutRecord
from lightning_core.runner import LitAgentRunner
from lightning_core.runs.retention import Retention
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.backend import StoreBackend
from lightning_core.store.memory import MemoryBackend
from lightning_core.tracer import DummyTracer
from lightning_core.types import AttemptedRollout, AttemptStatus, EnqueueRolloutRequest, Rollout, Span

AGENT_SECONDS: Final = 10 / 3
"""The mean time of an agent: 1,000 runners are 300 rollouts/s at the most."""
SPANS: Final = 5
"""Of a rollout: four model calls, and the reward."""
BENT: Final = 0.6
"""A store that does less of the possible is not given more runners."""
RUNNERS_PER_PROCESS: Final = 500
START_SECONDS: Final = 0.005
"""Between the starts of two runners: a cluster does not start all of them in the same moment either."""
FILLED_AT_ONCE: Final = 2_000
RUN: Final = "scale"


def agent_spans(rollout_id: str = "", attempt_id: str = "") -> list[Span]:
    """Make what one agent records."""
    reward = emit_reward(1.0, propagate=False)
    return [
        *spans_of(Span, rollout_id, attempt_id, SPANS - 1),
        Span.from_core_fields(reward, rollout_id=rollout_id, attempt_id=attempt_id),
    ]


@rollout
async def patient(task: float) -> list[Span]:
    """An agent that waits about so many seconds, as for its model."""
    await asyncio.sleep(random.uniform(0.5, 1.5) * task)
    return agent_spans()


# Processes


class TimedClient(LightningStoreClient):
    """Notes when each claim was answered, and how long it took since it was asked for and there was something."""

    def __init__(self, url: str, claims: list[tuple[float, float]]) -> None:
        super().__init__(url, key="")
        self._claims = claims

    async def dequeue_rollout(self, *arguments: Any, **options: Any) -> AttemptedRollout | None:
        asked = time.time()
        claimed = await super().dequeue_rollout(*arguments, **options)
        if claimed is not None:
            now = time.time()
            self._claims.append((now, now - max(asked, claimed.start_time)))
        return claimed


def run_runners(urls: Sequence[str], numbers: Sequence[int], heartbeat: float, channel: Connection) -> None:
    """Run runners until the other end asks for their claims: the whole life of a process."""

    async def run() -> None:
        claims: list[tuple[float, float]] = []
        clients = [TimedClient(url, claims) for url in urls]

        async def work(number: int) -> None:
            await asyncio.sleep(number * START_SECONDS)
            runner = LitAgentRunner[float](DummyTracer(), heartbeat_interval=heartbeat)
            with runner.run_context(agent=patient, store=clients[number % len(clients)], worker_id=number):
                await runner.iter()

        tasks = [asyncio.create_task(work(number)) for number in numbers]
        channel.send("ready")
        asked = asyncio.get_running_loop().run_in_executor(None, channel.recv)
        done, _ = await asyncio.wait((asked, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for task in done - {asked}:
            task.result()
        channel.send(claims)
        await asyncio.sleep(60)  # until it is killed, with its rollouts under way

    logging.disable(logging.WARNING)  # a store that is too slow for them shows in the table
    work_in_process(run())  # as `agl worker` does


@contextmanager
def runner_processes(server: "Served", runners: int) -> Iterator[list[Connection]]:
    """Start so many runners, spread over processes; kill them at the end."""
    spawning = multiprocessing.get_context("spawn")
    processes, channels = [], []
    for first in range(0, runners, RUNNERS_PER_PROCESS):
        here, there = spawning.Pipe()
        numbers = range(first, min(first + RUNNERS_PER_PROCESS, runners))
        process = spawning.Process(
            target=run_runners, args=(server.urls, numbers, server.lease_seconds / 3, there), daemon=True
        )
        process.start()
        there.close()
        processes.append(process)
        channels.append(here)
    try:
        for channel in channels:
            channel.recv()
        yield channels
    finally:
        for process in processes:
            process.kill()
            process.join()


class Served:
    """A store behind one server or two, and what their processes take."""

    def __init__(
        self, urls: Sequence[str], servers: Sequence[int], databases: Sequence[int], lease_seconds: float
    ) -> None:
        self.urls = urls
        self.lease_seconds = lease_seconds
        self.servers = [psutil.Process(pid) for pid in servers]
        self.databases = [psutil.Process(pid) for pid in databases]

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each kind of process has taken, all processes of the kind together."""
        own = psutil.Process()
        here = {process.pid for process in (*self.servers, *self.databases)}
        clients = [child for child in own.children() if child.pid not in here]
        kinds = {"servers": self.servers, "database": self.databases, "runners": clients, "algorithm": [own]}
        return {kind: sum(sum(each.cpu_times()[:2]) for each in processes) for kind, processes in kinds.items()}

    def memory(self) -> float:
        """Return the MiB that the servers hold."""
        return float(sum(process.memory_info().rss for process in self.servers)) / 2**20


@contextmanager
def served(store: str, lease_seconds: float) -> Iterator[Served]:
    """Serve an empty store, by `agl serve store`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-")))
        options, count, databases = [], 1, []
        if store == "sqlite":
            options = ["--backend", "sqlite", "--path", str(folder / "store.db")]
        elif store.startswith("mongo"):
            uri, pid = stack.enter_context(mongod(folder))
            options, count, databases = ["--backend", "mongo", "--mongo-uri", uri], int(store == "mongo-2") + 1, [pid]
        options += ["--run", RUN, "--set", f"lease_seconds={lease_seconds}"]
        servers = [stack.enter_context(agl_store(*options)) for _ in range(count)]
        yield Served([url for url, _ in servers], [pid for _, pid in servers], databases, lease_seconds)


@contextmanager
def mongod(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a replica set of one; give its address and its process."""
    with Mongod(folder, replica_set=True) as server:
        (process,) = (child for child in psutil.Process().children() if child.name() == "mongod")
        yield f"{server.uri}/?replicaSet=rs0", process.pid


# The parts


def table(title: str, columns: Sequence[str]) -> None:
    """Print the head of a table."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    """Print a row."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measure_runners(
    stores: Sequence[str], counts: Sequence[int], lease_seconds: float, *, agent_seconds: float, seconds: float
) -> None:
    """Print what a store does with so many busy runners."""
    table(
        f"Busy runners: a rollout takes {agent_seconds:.2f} s and has {SPANS} spans; measured for {seconds:g} s",
        (
            *("store", "runners", "rollouts/s", "of the possible", "a claim: p50", "p95", "servers' cores"),
            *("CPU ms a rollout: servers", "database", "runners", "algorithm", "servers' MiB", "files"),
        ),
    )
    for store in stores:
        for runners in counts:
            with served(store, lease_seconds) as server, runner_processes(server, runners) as channels:
                began, cpu = asyncio.run(_lead(server, runners, agent_seconds, seconds))
                claims = []
                for channel in channels:
                    channel.send("report")
                    claims += channel.recv()
                memory, files = server.memory(), sum(process.num_fds() for process in server.servers)
            taken = [latency * 1e3 for at, latency in claims if began <= at < began + seconds]
            share = len(taken) / seconds * agent_seconds / runners
            cuts = statistics.quantiles(taken, n=20)
            row(
                *(store, f"{runners:,}", f"{len(taken) / seconds:,.0f}", f"{share:.0%}"),
                *(f"{cuts[9]:.1f} ms", f"{cuts[18]:.1f} ms", f"{cpu['servers'] / seconds:.2f}"),
                *(f"{used * 1e3 / len(taken):.2f}" for used in cpu.values()),
                *(f"{memory:,.0f}", f"{files:,}"),
            )
            if share < BENT:
                break


async def _lead(server: Served, runners: int, agent_seconds: float, seconds: float) -> tuple[float, dict[str, float]]:
    """Keep runners busy with batches; return when the measured time began, and the CPU seconds taken in it."""

    async def batches(store: LightningStore) -> None:
        while True:
            batch = await run_batch(store, [agent_seconds] * max(runners // 4, 1), mode="train")
            if batch.lost:
                raise RuntimeError(f"{batch.lost} rollouts gave no reward; the first: {batch.outcomes[0].failure}")

    async with LightningStoreClient(server.urls[0], key="") as store, asyncio.TaskGroup() as group:
        loops = [group.create_task(batches(store)) for _ in range(12)]  # the queue never is empty
        # An agent's time is from 0.5 to 1.5 times the mean. Between the first and the second of these times the second
        # rollouts begin evenly; later ones the more evenly, the more rounds there were.
        await asyncio.sleep((2.0 if agent_seconds < seconds else 0.6) * agent_seconds + runners * START_SECONDS)
        began, before = time.time(), server.cpu()
        await asyncio.sleep(seconds)
        after = server.cpu()
        for loop in loops:
            loop.cancel()
    return began, {kind: after[kind] - before[kind] for kind in after}


def measure_idle(stores: Sequence[str], counts: Sequence[int], lease_seconds: float, *, seconds: float) -> None:
    """Print what runners cost that wait for work."""
    table(
        f"Idle runners: the share of a core that each side takes, over {seconds:g} s",
        ("store", "runners", "servers", "database", "runners' processes", "server MiB"),
    )
    for store in stores:
        for runners in counts:
            with served(store, lease_seconds) as server, runner_processes(server, runners):
                time.sleep(min(seconds, 5 + runners * START_SECONDS))  # until all have said that they are there
                before = server.cpu()
                time.sleep(seconds)
                used = {kind: after - before[kind] for kind, after in server.cpu().items()}
                shares = (f"{used[kind] / seconds:.1%}" for kind in ("servers", "database", "runners"))
                row(store, f"{runners:,}", *shares, f"{server.memory():,.0f}")


async def fill(
    backend: StoreBackend,
    run_id: str,
    first: int,
    last: int,
    spans_of_attempt: Callable[[str, str], list[Span]] = agent_spans,
) -> None:
    """Put rollouts that have ended into a store, a hundredth of them failed: as they are kept, for the sake of time."""
    for start in range(first, last, FILLED_AT_ONCE):
        records, spans = [], []
        for number in range(start, min(start + FILLED_AT_ONCE, last)):
            rollout_id, attempt_id, now = f"ro-{secrets.token_hex(8)}", f"at-{secrets.token_hex(8)}", time.time()
            task = {"question": f"What is {number} plus {number % 7}, and why?"}
            new = RolloutRecord(run_id, Rollout(rollout_id=rollout_id, input=task, mode="train", start_time=now))
            begun = lifecycle.begin_attempt(new, now, attempt_id=attempt_id, worker_id=f"worker-{number % 100}")
            status: AttemptStatus = "succeeded" if number % 100 else "failed"
            records.append(lifecycle.set_attempt_status(begun, now, attempt_id, status))
            spans += spans_of_attempt(rollout_id, attempt_id)
        await backend.insert(records)
        await backend.append_spans(run_id, spans)


PAGES: Final[dict[str, dict[str, Any]]] = {
    "the first": {},
    "far behind": {"offset": 0.98},
    "the newest": {"sort_by": "start_time", "sort_order": "desc"},
    "the newest that failed": {"status_in": ["failed"], "sort_by": "start_time", "sort_order": "desc"},
    "far behind, of those that succeeded": {"status_in": ["succeeded"], "offset": 0.98},
    "of a status that none has": {"status_in": ["cancelled"]},
    "by a part of an id": {"rollout_id_contains": "abc"},
}
"""Of 100 rollouts, with offsets as shares of all: the viewer reads on by offset, tables sort by time, `agl show` looks
for a part of an id."""


async def ask(store: LightningStore, total: int, tries: int) -> dict[str, float]:
    """Return the median milliseconds of each question."""

    async def timed(calls: Sequence[Callable[[], Awaitable[Any]]]) -> float:
        taken = []
        for call in calls:
            began = time.perf_counter()
            await call()
            taken.append((time.perf_counter() - began) * 1e3)
        return statistics.median(taken)

    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(5 * tries)])
    found: dict[str, float] = {}
    found["claim"] = await timed([lambda: store.dequeue_rollout("worker-1")] * 5 * tries)
    ids = [(await store.query_rollouts(limit=1, offset=total * n // tries))[0].rollout_id for n in range(tries)]
    found["trace"] = await timed([lambda each=each: store.query_spans(each) for each in ids])  # type: ignore[misc]
    found["statistics"] = await timed([store.statistics] * tries)
    for name, query in PAGES.items():
        query = {**query, "offset": int(total * query.get("offset", 0))}
        found[f"page: {name}"] = await timed([lambda query=query: store.query_rollouts(limit=100, **query)] * tries)  # type: ignore[misc]
    for each in await store.query_rollouts(status_in=["preparing"]):
        await store.update_rollout(each.rollout_id, status="succeeded")
    return found


def measure_size(store: str, counts: Sequence[int], tries: int) -> None:
    """Print how long questions take to a store that holds more and more. It has the process to itself."""
    by_count: dict[int, dict[str, float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-")))
        uri = stack.enter_context(mongod(folder))[0] if store == "mongo" else ""
        asyncio.run(_measure_size(store, folder, uri, sorted(counts), tries, by_count))
    columns = (f"{count:,} rollouts" for count in by_count)
    table(f"{store}, {SPANS} spans a rollout: milliseconds, the median of {tries}", ("", *columns))
    for question in by_count[max(counts)]:
        digits = 0 if "bytes" in question else 1
        row(question, *(f"{found[question]:,.{digits}f}" for found in by_count.values()))


async def _measure_size(
    name: str, folder: Path, uri: str, counts: Sequence[int], tries: int, by_count: dict[int, dict[str, float]]
) -> None:
    backend: StoreBackend
    if name == "memory":
        backend = MemoryBackend()
    else:
        backend = MongoBackend(Settings(uri)) if name == "mongo" else SqliteBackend(folder / "store.db")
    store = StoreFacade(backend)
    held, resident = 0, psutil.Process().memory_info().rss
    for count in counts:
        began, cpu = time.perf_counter(), time.process_time()
        await fill(backend, store.run_id, held, count)
        took, used, held = time.perf_counter() - began, time.process_time() - cpu, count
        print(f"{name}: {count:,} rollouts after {took:,.0f} s, {used:,.0f} s of CPU here", file=sys.stderr)
        by_count[count] = await ask(store, count, tries)
        gc.collect()
        files = [file for file in folder.rglob("*") if file.is_file()]  # noqa: ASYNC240  # no one else waits
        by_count[count]["bytes on disk a rollout"] = sum(file.stat().st_size for file in files) / count
        by_count[count]["bytes of memory a rollout"] = (psutil.Process().memory_info().rss - resident) / count
    await store.aclose()


ROOM_STEP: Final = 100
"""Rollouts of a step."""
ROOM_KEPT: Final = 8
"""Steps that keep their spans."""
_WORDS: Final = ["".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=2 + n % 9)) for n in range(5_000)]


def long_spans(rollout_id: str, attempt_id: str) -> list[Span]:
    """Make ten model calls with 2 kB of text each."""
    spans = spans_of(Span, rollout_id, attempt_id, 10)
    for span in spans:
        words = " ".join(random.choices(_WORDS, k=300))[:2_000]
        span.attributes = {
            **span.attributes,
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": words[:1_500],
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": words[1_500:],
        }
    return spans


def measure_room(name: str, count: int, keeps_all: bool) -> None:
    """Print what the traces of a run need. It has the process to itself."""
    asyncio.run(_measure_room(name, count, keeps_all))


async def _measure_room(name: str, count: int, keeps_all: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        path = Path(folder) / "store.db"
        store = StoreFacade(MemoryBackend() if name == "memory" else SqliteBackend(path))
        retention = Retention(store, ROOM_KEPT)
        await fill(store.backend, "warm-up", 0, ROOM_STEP, long_spans)
        resident, cpu, dropping = psutil.Process().memory_info().rss, time.process_time(), 0.0
        for first in range(0, count, ROOM_STEP):
            await fill(store.backend, store.run_id, first, first + ROOM_STEP, long_spans)
            began = time.process_time()
            if not keeps_all:
                await retention.lightning_step_end()
            dropping += time.process_time() - began
        cpu = time.process_time() - cpu
        gc.collect()
        memory = psutil.Process().memory_info().rss - resident
        await store.aclose()
        disk = path.stat().st_size if path.exists() else 0
        kept = "all" if keeps_all else f"{ROOM_KEPT} steps"
        seconds = f"{dropping * 1e3 / count:.1f} ms" if dropping else ""
        row(name, f"{count:,}", kept, f"{memory / 1e6:,.0f} MB", f"{disk / 1e6:,.0f} MB", seconds)


PARTS: Final = ("runners", "idle", "size", "room")
STORES: Final = ("memory", "sqlite", "mongo", "mongo-2")


def alone(measure: Callable[..., None], *arguments: Any) -> None:
    """Measure in a new process."""
    process = multiprocessing.get_context("spawn").Process(target=measure, args=arguments)
    process.start()
    process.join()


def main() -> None:
    """Measure the parts that the command names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="all of them by default")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each store")
    parser.add_argument("--stores", nargs="+", choices=STORES, help="mongo-2 is one database and two servers")
    parser.add_argument("--counts", nargs="+", type=int, help="of runners, or of rollouts")
    parser.add_argument("--lease-seconds", type=float, default=30.0, help="of the store; a third is between heartbeats")
    parser.add_argument("--agent-seconds", type=float, help="the mean time of an agent; 3.33 by default")
    given = parser.parse_args()
    parts = PARTS if given.part is None else (given.part,)
    stores = given.stores or STORES
    if find_mongod() is None:
        stores = [store for store in stores if not store.startswith("mongo")]
        print(f"without MongoDB: there is no mongod; {PACKAGE} has one")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}", flush=True)
    if "runners" in parts:
        counts = given.counts or ((10,) if given.quick else (300, 1_000, 2_000))
        agent_seconds = given.agent_seconds or (0.2 if given.quick else AGENT_SECONDS)
        # As long as the heartbeats are apart: the runners, which began one after the other, send theirs in turn.
        seconds = 1.0 if given.quick else given.lease_seconds / 3
        measure_runners(stores, counts, given.lease_seconds, agent_seconds=agent_seconds, seconds=seconds)
    if "idle" in parts:
        idle = given.stores or ("sqlite",)
        counts = given.counts or ((10,) if given.quick else (1_000,))
        measure_idle(idle, counts, given.lease_seconds, seconds=1.0 if given.quick else 60.0)
    if "size" in parts:
        counts = given.counts or ((1_000,) if given.quick else (10_000, 100_000))
        for store in stores:
            if store != "mongo-2":
                arguments = (store, counts, 3 if given.quick else 9)
                alone(measure_size, *arguments)
    if "room" in parts:
        columns = ("store", "rollouts", "content is kept of", "memory", "disk", "CPU time to drop it, a rollout")
        table(f"Ten calls of 2 kB a rollout, {ROOM_STEP} rollouts a step", columns)
        for store in [store for store in stores if not store.startswith("mongo")]:
            for count in given.counts or ((1_000,) if given.quick else (1_000, 10_000)):
                for keeps_all in (True, False):
                    alone(measure_room, store, count, keeps_all)


if __name__ == "__main__":
    main()
