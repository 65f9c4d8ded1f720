import asyncio
import logging
import re
import threading
from typing import Any

import pytest

from lightning_core.agent import rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.errors import StoreClosed
from lightning_core.execution import ExecutionError, LocalStrategy, local
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.testing.store.base import turn
from lightning_core.trainer import Trainer
from lightning_core.types import RolloutConfig

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


class Runners:
    """Succeed with whatever is queued, until they are cancelled or have done `limit` rollouts each."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.started: list[int] = []
        self.ended: list[int] = []
        self.gone = asyncio.Event()
        """Set when all that were started have ended."""

    async def __call__(self, store: LightningStore, worker_id: int) -> None:
        self.started.append(worker_id)
        done = 0
        try:
            while self.limit is None or done < self.limit:
                claimed = await store.dequeue_rollout(wait_seconds=None)
                assert claimed is not None
                await store.update_attempt(claimed.rollout_id, "latest", status="succeeded")
                done += 1
        finally:
            self.ended.append(worker_id)
            if len(self.ended) == len(self.started):
                self.gone.set()


async def forever(store: LightningStore, worker_id: int = 0) -> None:
    await asyncio.Event().wait()


# The algorithm ends


async def test_runners_end_when_the_algorithm_has_ended(store: InMemoryLightningStore) -> None:
    runners = Runners()

    async def algorithm(given: LightningStore) -> None:
        assert given is store
        rollouts = [await store.enqueue_rollout(number) for number in range(10)]
        ended = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])
        assert len(ended) == 10

    await LocalStrategy(n_runners=3).execute(algorithm, runners, store)

    assert runners.started == [0, 1, 2]
    assert sorted(runners.ended) == [0, 1, 2]


async def test_what_the_algorithm_raises_is_raised_when_all_runners_have_ended(store: InMemoryLightningStore) -> None:
    runners = Runners()
    error = ValueError("no gradient")

    async def algorithm(store: LightningStore) -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(ValueError, match="no gradient") as raised:
        await LocalStrategy(n_runners=2).execute(algorithm, runners, store)

    assert raised.value is error
    assert sorted(runners.ended) == [0, 1]


async def test_algorithm_that_was_cancelled_from_inside_does_not_look_like_a_cancelled_run(
    store: InMemoryLightningStore,
) -> None:
    async def algorithm(store: LightningStore) -> None:
        judge = asyncio.create_task(asyncio.sleep(60))
        judge.cancel()
        await judge

    with pytest.raises(ExecutionError, match="algorithm was cancelled from inside: it awaited something that was"):
        await LocalStrategy().execute(algorithm, Runners(), store)


# A runner ends


async def test_runner_that_cannot_go_on_cancels_the_algorithm_and_its_error_is_raised(
    store: InMemoryLightningStore,
) -> None:
    cancelled = []

    async def algorithm(store: LightningStore) -> None:
        try:
            await forever(store)
        except asyncio.CancelledError:
            cancelled.append("algorithm")
            raise

    async def runner(store: LightningStore, worker_id: int) -> None:
        if worker_id == 1:
            raise ConnectionError("the store is gone")
        try:
            await forever(store)
        except asyncio.CancelledError:
            cancelled.append(f"runner {worker_id}")
            raise

    with pytest.raises(ConnectionError, match="the store is gone"):
        await LocalStrategy(n_runners=3).execute(algorithm, runner, store)

    assert sorted(cancelled) == ["algorithm", "runner 0", "runner 2"]


async def test_trouble_that_hits_everybody_at_once_is_raised_once_and_logged(
    store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    broken = asyncio.Event()

    async def part(store: LightningStore, worker_id: int | None = None) -> None:
        if worker_id == 0:
            broken.set()
        await broken.wait()
        raise ConnectionError(f"{worker_id} lost the store")

    with pytest.raises(ConnectionError, match="lost the store"):
        await LocalStrategy(n_runners=2).execute(part, part, store)

    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.text.count("lightning.task_ended_badly task=") == 2


async def test_runner_that_was_cancelled_from_inside_ends_the_run(store: InMemoryLightningStore) -> None:
    async def runner(store: LightningStore, worker_id: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(ExecutionError, match="runner 0 was cancelled from inside"):
        await LocalStrategy().execute(forever, runner, store)


async def test_work_that_is_queued_after_the_last_runner_is_an_error_and_stays_in_the_queue_unclaimed(
    store: InMemoryLightningStore,
) -> None:
    runners, left = Runners(limit=1), list[str]()

    async def algorithm(store: LightningStore) -> None:
        for number in range(2):
            rollout = await store.enqueue_rollout(number, config=RolloutConfig(max_attempts=1))
            left.append(rollout.rollout_id)
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            await runners.gone.wait()
            await turn(20)

    with pytest.raises(ExecutionError, match="all 1 runners have reached their max_rollouts, and rollout") as raised:
        await LocalStrategy().execute(algorithm, runners, store)

    assert left[1] in str(raised.value)
    assert list(await store.query_attempts(left[1])) == []
    (waiting,) = await store.query_rollouts(status_in=["queuing"])
    assert waiting.rollout_id == left[1]


async def test_algorithm_that_closes_the_store_as_it_ends_is_no_trouble(store: InMemoryLightningStore) -> None:
    runners = Runners(limit=1)

    async def algorithm(store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await runners.gone.wait()
        await turn(20)
        await store.aclose()

    await LocalStrategy().execute(algorithm, runners, store)

    assert runners.ended == [0]


async def test_store_that_is_closed_ends_the_run(store: InMemoryLightningStore) -> None:
    async def algorithm(store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        await store.aclose()
        await forever(store)

    with pytest.raises(StoreClosed):
        await LocalStrategy(n_runners=2).execute(algorithm, Runners(), store)


# The run is cancelled


async def test_part_that_does_not_let_itself_be_cancelled_is_abandoned(
    store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "END_GRACE_SECONDS", 0)
    release, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(store: LightningStore, worker_id: int) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def algorithm(store: LightningStore) -> None:
        await asyncio.sleep(0)

    await LocalStrategy().execute(algorithm, stubborn, store)
    release.set()
    await ended.wait()

    assert "lightning.task_abandoned task=runner 0" in caplog.text


# With the real algorithm and runners


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_cancelled_fit_leaves_nothing_running(is_async: bool) -> None:
    working, release = asyncio.Barrier(5), threading.Event()
    loop = asyncio.get_running_loop()

    @rollout
    async def in_loop(task: int) -> None:
        await working.wait()
        await asyncio.Event().wait()

    @rollout
    def in_thread(task: int) -> None:
        asyncio.run_coroutine_threadsafe(working.wait(), loop).result()
        release.wait(20)

    trainer = Trainer(algorithm="baseline", n_runners=4)
    run = asyncio.create_task(trainer.fit_async(in_loop if is_async else in_thread, range(100)))
    await working.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    release.set()

    statuses = [each.status for each in await trainer.store.query_rollouts()]
    assert statuses.count("queuing") == 96
    assert not {"succeeded", "failed"} & set(statuses)


async def test_exact_number_of_rollouts_is_enough(store: InMemoryLightningStore) -> None:
    @rollout
    async def echo(task: float) -> float:
        return task

    @algo
    async def two_steps(store: LightningStore, train_dataset: Any, report: Any) -> None:
        runners = [task for task in asyncio.all_tasks() if task.get_name() == "runner 0"]
        for step in (1, 2):
            batch = await run_batch(store, train_dataset, mode="train")
            if step == 2:
                await asyncio.wait(runners)
                await turn(20)
            report({"reward": batch.mean_reward}, step=step)

    trainer = Trainer(algorithm=two_steps, n_runners=1, max_rollouts=6)
    result = await trainer.fit_async(echo, [1.0, 2.0, 3.0])
    assert result.metrics == {"reward": 2.0}

    with pytest.raises(ExecutionError, match=re.escape("all 1 runners have reached their max_rollouts")):
        await Trainer(algorithm=two_steps, n_runners=1, max_rollouts=5).fit_async(echo, [1.0, 2.0, 3.0])


def test_number_of_runners_is_checked() -> None:
    with pytest.raises(ValueError, match="n_runners is 0; it is a whole number from 1 on"):
        LocalStrategy(n_runners=0)
