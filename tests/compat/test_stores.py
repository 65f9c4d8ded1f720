"""Store classes that were written for agentlightning 0.3."""

import asyncio
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lightning_core as agl
from lightning_core.errors import InvalidRequest, RunEnded, StoreClosed
from lightning_core.store import UNSET, LightningStore, LightningStoreThreaded
from lightning_core.types import ResourcesUpdate

pytest.importorskip("lightning_http")  # the strategy "cs"
pytest.importorskip("lightning_legacy")

SIGNATURES = Path(__file__).parents[1] / "docs" / "agentlightning_0_3_signatures.txt"


def written(name: str, parameters: list[str]) -> Any:
    """Make a method that has the parameters of 0.3 alone, and hands them to `kept`."""
    today = inspect.signature(getattr(LightningStore, name)).parameters
    signature = inspect.Signature([today[each] for each in ("self", *parameters)])

    async def method(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        return await getattr(given.pop("self").kept, name)(**given)

    method.__name__ = name
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


class _Kept(LightningStore):
    def __init__(self) -> None:
        super().__init__()
        self.kept = agl.InMemoryLightningStore()

    @property
    def capabilities(self) -> Any:
        return {"thread_safe": True, "async_safe": True}


_NOT_ABSTRACT = ("statistics", "otlp_traces_endpoint")
_METHODS = {
    name: parameters.split()
    for name, parameters in re.findall(
        r"^LightningStore\.(\w+)\(\)(.*)$", SIGNATURES.read_text(encoding="utf-8"), re.MULTILINE
    )
    if name not in _NOT_ABSTRACT
}
Written: Any = type("Written", (_Kept,), {name: written(name, given) for name, given in _METHODS.items()})
"""A store with the methods of 0.3 and their parameters, and nothing else."""


def as_list(name: str) -> Any:
    """Make a query that returns a list: in 0.3 it gives a `Sequence`."""

    async def method(self: Any, *args: Any, **query: Any) -> Any:
        return list(await getattr(self.kept, name)(*args, **query))

    return method


WithLists: Any = type("WithLists", (Written,), {name: as_list(name) for name in _METHODS if name.startswith("query_")})


@agl.rollout
async def agent(task: int, prompt_template: agl.PromptTemplate) -> float:
    assert prompt_template.template == "p"
    if task == 1:
        raise ValueError("hard")
    return task / 4


@pytest.mark.parametrize(("strategy", "kind"), [("shm", Written), ("cs", Written), ("shm", WithLists)])
def test_a_run_goes_through_a_store_of_0_3(strategy: str, kind: Any) -> None:
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
    added = await store.update_attempt(*own, "running", "w-1", UNSET, UNSET, add_metadata={"c": 3})
    assert (added.status, added.worker_id, added.metadata) == ("running", "w-1", {"a": 1, "b": 2, "c": 3})
    replaced = await store.update_attempt(*own, metadata={"c": 3}, add_metadata={"d": 4})
    assert replaced.metadata == {"c": 3, "d": 4}
    failed = await store.report_fault(*own, "the proxy died")
    assert (failed.status, failed.metadata) == ("failed", {"c": 3, "d": 4, "fault": "the proxy died"})


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
