"""One call of `Trainer.fit`: the parts of the trainer at work, and what came of it."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_core.agent import LitAgent
from lightning_core.algorithm import Algorithm
from lightning_core.errors import InvalidAgent, InvalidComponent, LightningError
from lightning_core.runner.calls import in_daemon_thread
from lightning_core.runs import FitResult, Progress, RunStatus, compare, count_rollouts
from lightning_core.runs.failed_hooks import failed_hooks
from lightning_core.runs.held_out import measure_held_out
from lightning_core.runs.overlap import warn_of_overlap
from lightning_core.runs.provenance import describe_origin
from lightning_core.store import LightningStore
from lightning_core.types import Dataset

if TYPE_CHECKING:
    from lightning_core.trainer.trainer import Trainer

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS = 1.0
"""How long a run may take to end after a second Ctrl-C."""

END_SECONDS = 30.0
"""How long plugins may take to end a run; after Ctrl-C each gets a moment."""


class Run:
    """One call of `fit`."""

    def __init__(
        self,
        trainer: "Trainer",
        agent: object,
        algorithm: Algorithm | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        test_dataset: Dataset[Any] | None,
    ) -> None:
        if algorithm is None:
            raise LightningError("this trainer has no algorithm; name one, as in Trainer(algorithm='baseline')")
        if not isinstance(agent, LitAgent):
            raise InvalidAgent(f"{agent!r} is no agent; decorate the function with @rollout, or subclass LitAgent")
        self._datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        for name, dataset in {**self._datasets, "test_dataset": test_dataset}.items():
            _check_dataset(name, dataset)
        warn_of_overlap(test_dataset, self._datasets)
        self._trainer = trainer
        self._algorithm = algorithm
        self._agent = agent
        self._test_dataset = test_dataset
        trainer.result = None
        self._store = trainer.next_store()
        self._recording = trainer.recording
        if self._recording is not None:
            origin = describe_origin() if trainer.origin is None else trainer.origin
            named = origin.config.get("algorithm", {}).get("name", type(algorithm).__name__)
            self._recording.begin(algorithm=named, store=self._store, origin=origin, initial=trainer.initial_resources)
        self._progress = Progress(self._recording)
        self._started = time.monotonic()
        self._failed_before = trainer.hooks.failures
        self._task: asyncio.Task[Any] | None = None

    async def execute(self) -> FitResult:
        """Run to the end."""
        self._task = asyncio.current_task()
        hooks, run_id = self._trainer.hooks, self._store.run_id
        status: RunStatus = "failed"
        error: BaseException | None = None
        try:
            if self._recording is not None:
                await self._recording.take_over(self._store)
            await hooks.emit("lightning_run_start", run_id=run_id)
            async with self._progress.telling(hooks):
                runners = self._trainer.runners_side(self._agent)
                await self._trainer.strategy.execute(self._run_algorithm, runners, self._store)
            status = "succeeded"
        except asyncio.CancelledError:
            status = "interrupted"
            raise
        except Exception as exc:
            error = exc
            raise
        finally:
            if self._recording is not None and status != "succeeded":
                self._recording.end(status, error=error)
            limit = 0.0 if status == "interrupted" else END_SECONDS
            await hooks.end_run(run_id, status, timeout_seconds=limit)
            if error is not None:
                await self._failed(error)
        return await self._ended(status)

    async def interrupted(self) -> FitResult:
        """Give a run that was interrupted a moment to end, and return what has come of it."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=INTERRUPTED_SECONDS)
        return await self._ended("interrupted")

    def close(self) -> None:
        """Let go of what only one run may have."""
        if self._recording is not None:
            self._recording.close()

    async def _ended(self, status: RunStatus) -> FitResult:
        result = self._trainer.result = await self.result(status)
        if self._recording is not None:
            self._recording.end(status, result=result)
        return result

    async def _failed(self, error: BaseException) -> None:
        """Keep what has come of a run that its error ends."""
        try:
            result = self._trainer.result = await self.result("failed")
        except Exception:
            # Such as a store that is gone, which is probably what the error tells, too.
            logger.warning("lightning.result_lost run_id=%s", self._store.run_id, exc_info=True)
            return
        if self._recording is not None:
            self._recording.end("failed", result=result, error=error)

    async def result(self, status: RunStatus) -> FitResult:
        """Return what has come of the run so far."""
        counts, failures = await count_rollouts(self._store)
        workers = [worker.heartbeat_stats or {} for worker in await self._store.query_workers()]
        return FitResult(
            run_id=self._store.run_id,
            status=status,
            best_resources=self._progress.best_resources,
            metrics=dict(self._progress.metrics),
            rollouts=counts,
            failures=failures,
            duration_seconds=time.monotonic() - self._started,
            abandoned_agents=sum(stats.get("abandoned_agents", 0) for stats in workers),
            dropped_spans=sum(stats.get("dropped_spans", 0) for stats in workers),
            failed_hooks=failed_hooks(self._failed_before, self._trainer.hooks.failures),
            comparison=await compare(
                self._store,
                initial=self._algorithm.get_initial_resources(),
                best=self._progress.best_resources,
            ),
        )

    async def _run_algorithm(self, store: LightningStore) -> None:
        algorithm = self._algorithm
        algorithm.set_trainer(self._trainer)
        algorithm.set_store(store)
        algorithm.set_adapter(self._trainer.adapter)
        if self._trainer.initial_resources is not None:  # the algorithm may have been given its own
            algorithm.set_initial_resources(self._trainer.initial_resources)
        algorithm.set_rollout_config(self._trainer.rollout_config)
        algorithm.set_reporter(self._progress)
        try:
            for part, work in (("algorithm", self._call_algorithm), ("held out", partial(self._measure, store))):
                if self._recording is None:
                    await work()
                else:
                    await self._recording.once(store, part, work)
        finally:
            algorithm.set_reporter(None)

    async def _measure(self, store: LightningStore) -> None:
        if self._test_dataset is not None:
            await measure_held_out(
                store,
                self._test_dataset,
                initial=self._trainer.initial_resources,
                best=self._progress.best_resources,
                report=self._progress,
                config=self._trainer.rollout_config,
            )

    async def _call_algorithm(self) -> None:
        run = partial(self._algorithm.run, **self._datasets)
        if self._algorithm.is_async():
            call = run()
        else:
            try:
                call = await in_daemon_thread(run, name="algorithm")
            except asyncio.CancelledError:
                logger.warning("lightning.algorithm_abandoned run_id=%s; its thread goes on", self._store.run_id)
                raise
        if call is not None:  # also of a plain function around a coroutine function
            await call


def _check_dataset(name: str, dataset: object) -> None:
    is_sequence = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if dataset is not None and (not is_sequence or isinstance(dataset, str | bytes | Mapping)):
        raise InvalidComponent(
            f"{name} is a {type(dataset).__name__}; a dataset has a length and is read by index, as a list is"
        )
