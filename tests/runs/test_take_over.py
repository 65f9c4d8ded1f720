"""A run that goes on takes back what its dead process worked on, and nothing that others work on."""

from pathlib import Path

from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.adapter.usage import Usage
from lightning_core.runs import RunFolder
from lightning_core.runs.manifest import Origin
from lightning_core.runs.recording import Recording
from lightning_core.runs.result import keep_usage, sum_usage
from lightning_core.store import InMemoryLightningStore, LightningStore, StoreFacade
from lightning_core.store.memory import MemoryBackend
from lightning_core.types import RolloutStatus


async def status_after(folder: Path, store: LightningStore, rollout_id: str) -> RolloutStatus:
    """Begin a run with a store, and go on with it; return what has become of a rollout by then."""
    place = RunFolder.create(folder, store.run_id)
    for _ in range(2):
        recording = Recording(place)
        try:
            recording.begin(algorithm="baseline", store=store, origin=Origin(), initial=None)
            await recording.take_over(store)
        finally:
            recording.close()
    found = await store.get_rollout_by_id(rollout_id)
    assert found is not None
    return found.status


async def test_what_ran_in_the_process_that_had_the_store_is_queued_again(tmp_path: Path) -> None:
    store = StoreFacade(MemoryBackend())  # not known as the store that nothing is left of after a kill
    started = await store.start_rollout("task", worker_id="w-1")
    assert await status_after(tmp_path, store, started.rollout_id) == "requeuing"


async def test_runners_of_a_store_that_is_served_elsewhere_keep_what_they_work_on(tmp_path: Path) -> None:
    memory = InMemoryLightningStore()
    started = await memory.start_rollout("task", worker_id="w-1")
    async with LightningStoreServer(memory) as server, LightningStoreClient(server.url) as store:
        assert await status_after(tmp_path, store, started.rollout_id) == "preparing"


async def test_what_deleted_rollouts_used_counts_once_also_after_a_kill_before_they_are_deleted() -> None:
    store = InMemoryLightningStore()
    rollouts = []
    for _ in range(2):
        started = await store.start_rollout("task")
        used = {"usage": {"calls": 3, "input_tokens": 10}}
        await store.update_attempt(started.rollout_id, "latest", status="failed", add_metadata={**used, "failure": {}})
        rollouts.append(started)
    assert (await sum_usage(store)).agent == Usage(calls=6, input_tokens=20)
    for _ in range(2):  # the first time, the process is killed before it deletes them
        await keep_usage(store, rollouts)
        assert (await sum_usage(store)).agent == Usage(calls=6, input_tokens=20)
    await store.delete_rollouts([each.rollout_id for each in rollouts])
    assert (await sum_usage(store)).agent == Usage(calls=6, input_tokens=20)
    again = await store.start_rollout("task")
    await store.update_attempt(again.rollout_id, "latest", status="failed", add_metadata={**used, "failure": {}})
    await keep_usage(store, [again])
    assert (await sum_usage(store)).agent == Usage(calls=9, input_tokens=30)
