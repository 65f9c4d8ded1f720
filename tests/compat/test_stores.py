"""Store classes that were written for agentlightning 0.3."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lightning_core as agl
from lightning_core.errors import InvalidRequest, RunEnded, StoreClosed
from lightning_core.store import UNSET, LightningStore, LightningStoreThreaded
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)

pytest.importorskip("lightning_http")  # the strategy "cs"
pytest.importorskip("lightning_legacy")


class Written(LightningStore):
    """Has the methods of 0.3 with their parameters, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = agl.InMemoryLightningStore()

    @property
    def capabilities(self) -> Any:
        return {"thread_safe": True, "async_safe": True}

    async def start_rollout(
        self,
        input: Any,
        mode: Any = None,
        resources_id: str | None = None,
        config: Any = None,
        metadata: Any = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        return await self.kept.start_rollout(input, mode, resources_id, config, metadata, worker_id)

    async def enqueue_rollout(
        self, input: Any, mode: Any = None, resources_id: str | None = None, config: Any = None, metadata: Any = None
    ) -> Rollout:
        return await self.kept.enqueue_rollout(input, mode, resources_id, config, metadata)

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self.kept.enqueue_many_rollouts(rollouts)

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        return await self.kept.dequeue_rollout(worker_id)

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        return await self.kept.dequeue_many_rollouts(limit=limit, worker_id=worker_id)

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        return await self.kept.start_attempt(rollout_id, worker_id)

    async def add_span(self, span: Span) -> Span | None:
        return await self.kept.add_span(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        return await self.kept.add_many_spans(spans)

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        return await self.kept.add_otel_span(rollout_id, attempt_id, readable_span, sequence_id)

    async def query_rollouts(
        self,
        *,
        status_in: Any = None,
        rollout_id_in: Any = None,
        rollout_id_contains: str | None = None,
        filter_logic: Any = "and",
        sort_by: str | None = None,
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Any = None,
        rollout_ids: Any = None,
    ) -> PaginatedResult[Rollout]:
        return await self.kept.query_rollouts(
            status_in=status_in, rollout_id_in=rollout_id_in, sort_by=sort_by, limit=limit, offset=offset
        )

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Any = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        return await self.kept.query_attempts(rollout_id)

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        return await self.kept.get_rollout_by_id(rollout_id)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return await self.kept.get_latest_attempt(rollout_id)

    async def query_resources(self, **query: Any) -> PaginatedResult[ResourcesUpdate]:
        return await self.kept.query_resources(**query)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self.kept.get_resources_by_id(resources_id)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self.kept.get_latest_resources()

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        return await self.kept.get_next_span_sequence_id(rollout_id, attempt_id)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        return await self.kept.get_many_span_sequence_ids(rollout_attempt_ids)

    async def wait_for_rollouts(self, *, rollout_ids: Any, timeout: float | None = None) -> Sequence[Rollout]:
        return await self.kept.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)

    async def query_spans(self, rollout_id: str, attempt_id: str | None = None, **query: Any) -> PaginatedResult[Span]:
        return await self.kept.query_spans(rollout_id, attempt_id, **query)

    async def add_resources(self, resources: Any) -> ResourcesUpdate:
        return await self.kept.add_resources(resources)

    async def update_resources(self, resources_id: str, resources: Any) -> ResourcesUpdate:
        return await self.kept.update_resources(resources_id, resources)

    async def update_rollout(
        self,
        rollout_id: str,
        input: Any = UNSET,
        mode: Any = UNSET,
        resources_id: Any = UNSET,
        status: Any = UNSET,
        config: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Rollout:
        return await self.kept.update_rollout(rollout_id, input, mode, resources_id, status, config, metadata)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        return await self.kept.update_attempt(rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata)

    async def query_workers(self, **query: Any) -> PaginatedResult[Worker]:
        return await self.kept.query_workers(**query)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self.kept.get_worker_by_id(worker_id)

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        return await self.kept.update_worker(worker_id, heartbeat_stats)


class WithLists(Written):
    """Returns lists: in 0.3 a query gives a `Sequence`."""

    async def query_rollouts(self, **query: Any) -> Any:
        return list(await self.kept.query_rollouts(**query))

    async def query_attempts(self, rollout_id: str, **query: Any) -> Any:
        return list(await self.kept.query_attempts(rollout_id, **query))

    async def query_spans(self, rollout_id: str, attempt_id: str | None = None, **query: Any) -> Any:
        return list(await self.kept.query_spans(rollout_id, attempt_id, **query))

    async def query_resources(self, **query: Any) -> Any:
        return list(await self.kept.query_resources(**query))

    async def query_workers(self, **query: Any) -> Any:
        return list(await self.kept.query_workers(**query))


@agl.rollout
async def agent(task: int, prompt_template: agl.PromptTemplate) -> float:
    assert prompt_template.template == "p"
    if task == 1:
        raise ValueError("hard")
    return task / 4


@pytest.mark.parametrize(("strategy", "kind"), [("shm", Written), ("cs", Written), ("shm", WithLists)])
def test_a_run_goes_through_a_store_of_0_3(strategy: str, kind: type[Written]) -> None:
    store = kind()
    trainer: Any = agl.Trainer(
        algorithm="baseline",
        store=store,
        n_runners=2,
        strategy=strategy,
        initial_resources={"prompt": agl.PromptTemplate(template="p", engine="f-string")},
    )
    result = trainer.fit(agent, train_dataset=[0, 1, 2])
    assert (result.rollouts.succeeded, result.rollouts.failed) == (2, 1)
    attempts = [asyncio.run(store.get_latest_attempt(each.rollout_id)) for each in asyncio.run(store.query_rollouts())]
    failures = [(each.metadata or {}).get("failure") for each in attempts if each is not None]
    assert [each["message"] for each in failures if each] == ["hard"]


async def test_what_came_after_0_3_has_a_default() -> None:
    store = Written()
    assert store.run_id == store.run_id != Written().run_id
    assert store.for_run(store.run_id) is store
    with pytest.raises(InvalidRequest, match=f"Written keeps run {store.run_id} only; got 'other'"):
        store.for_run("other")
    assert (await store.statistics())["name"] == "Written"
    with pytest.raises(NotImplementedError, match="Written is not served over HTTP"):
        store.otlp_traces_endpoint()
    assert await store.load_state("mine") is None
    await store.save_state("mine", {"step": 1})
    assert await store.load_state("mine") == {"step": 1}
    with pytest.raises(InvalidRequest, match="cannot be saved as JSON"):
        await store.save_state("mine", {1, 2})
    with pytest.raises(NotImplementedError, match="Written has no method delete_rollouts, which is needed here"):
        await store.delete_rollouts([])
    await store.aclose()


async def test_a_wait_for_work_ends_with_work_or_with_the_run() -> None:
    store = Written()
    assert await store.dequeue_rollout("w-1", wait_seconds=0.01) is None
    waiter = asyncio.create_task(store.dequeue_rollout("w-1", wait_seconds=None, request_id="r-1"))
    await store.enqueue_rollout("a", request_id="r-2")
    claimed = await asyncio.wait_for(waiter, 20)
    assert claimed is not None
    assert (claimed.input, claimed.attempt.worker_id) == ("a", "w-1")
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await store.end_run()
    with pytest.raises(RunEnded):
        await asyncio.wait_for(waiter, 20)
    await store.begin_run()
    assert await store.dequeue_many_rollouts(limit=2, wait_seconds=0) == []


async def test_added_metadata_keep_what_is_there_and_a_fault_is_a_failure() -> None:
    store = Written()
    started = await store.start_rollout("a")
    own = started.rollout_id, started.attempt.attempt_id
    await store.update_attempt(*own, metadata={"a": 1})
    assert (await store.update_attempt(*own, add_metadata={"b": 2})).metadata == {"a": 1, "b": 2}
    failed = await store.report_fault(*own, "the proxy died")
    assert (failed.status, failed.metadata) == ("failed", {"a": 1, "b": 2, "fault": "the proxy died"})


async def test_added_metadata_may_follow_arguments_given_by_position() -> None:
    store = Written()
    started = await store.start_rollout("a")
    own = started.rollout_id, started.attempt.attempt_id
    await store.update_attempt(*own, metadata={"a": 1})
    added = await store.update_attempt(*own, "running", "w-1", UNSET, UNSET, add_metadata={"b": 2})
    assert (added.status, added.worker_id, added.metadata) == ("running", "w-1", {"a": 1, "b": 2})
    replaced = await store.update_attempt(*own, metadata={"c": 3}, add_metadata={"d": 4})
    assert replaced.metadata == {"c": 3, "d": 4}


async def test_what_a_store_cannot_leave_out_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"Written\.query_rollouts takes no mode_in, which is \['val'\]"):
        await Written().query_rollouts(mode_in=["val"])


class Partial(LightningStore):
    """Has one method, as a test of a user's may; it loses updates when calls are interleaved."""

    def __init__(self) -> None:
        self.version = 0

    async def update_resources(self, resources_id: str, resources: Any) -> ResourcesUpdate:
        version = self.version + 1
        await asyncio.sleep(0.001)
        self.version = version
        return ResourcesUpdate(
            resources_id=resources_id, resources=resources, version=version, create_time=0, update_time=0
        )


def test_a_store_is_made_threaded_without_a_running_loop() -> None:
    partial = Partial()  # type: ignore[abstract]
    store = LightningStoreThreaded(partial)
    assert store.store is partial
    assert store.capabilities == {"thread_safe": True, "async_safe": True}
    with ThreadPoolExecutor(8) as threads:
        updates = threads.map(lambda n: asyncio.run(store.update_resources(f"rs-{n}", {})), range(20))
        assert sorted(update.version for update in updates) == list(range(1, 21))
    with pytest.raises(NotImplementedError, match="Partial has no method get_latest_resources"):
        asyncio.run(store.get_latest_resources())
    asyncio.run(store.aclose())
    with pytest.raises(StoreClosed):
        _until_closed(store)


def _until_closed(store: LightningStoreThreaded) -> None:
    """Call the store until the thread that it ran in has ended."""
    for thread in threading.enumerate():
        if thread.name == "store":
            thread.join(20)
    asyncio.run(store.update_resources("rs-late", {}))


def test_a_memory_store_is_made_threaded_without_a_running_loop() -> None:
    store = LightningStoreThreaded(agl.InMemoryLightningStore())
    rollout = asyncio.run(store.enqueue_rollout("a"))
    with ThreadPoolExecutor(2) as threads:
        claims = list(threads.map(lambda _: asyncio.run(store.dequeue_rollout(wait_seconds=0)), range(2)))
    assert [each.rollout_id for each in claims if each] == [rollout.rollout_id]
