"""One call of `Trainer.fit`: the parts of the trainer at work, and the result."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_core.adapter.base import TraceAdapter
from lightning_core.algorithm import Algorithm
from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import BudgetExhausted, RunFolderError
from lightning_core.execution import ExecutionStrategy
from lightning_core.former import former
from lightning_core.model_proxy import ModelProxy
from lightning_core.plugins import Hooks
from lightning_core.runs import FitResult, Progress, RunStatus, compare, count_rollouts
from lightning_core.runs.first_rollouts import FirstRollouts
from lightning_core.runs.held_out import measure_held_out
from lightning_core.runs.plan import plan_of
from lightning_core.runs.recording import Recording
from lightning_core.runs.result import failed_hooks, rewards_in, sum_usage
from lightning_core.runs.standing import Onlooker
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.trainer.budgeting import BudgetOfRun
from lightning_core.trainer.proxies import proxied, readdressed, with_model
from lightning_core.trainer.runners import RunnersSide
from lightning_core.types import Dataset, NamedResources, ProxyLLM, Rollout, RolloutConfig

if TYPE_CHECKING:
    from lightning_core.display.live import Display

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS = 1.0
"""How long a run may take to end after a second Ctrl-C."""

END_SECONDS = 30.0
"""How long plugins may take to end a run; after Ctrl-C each gets a moment."""


@dataclass(kw_only=True, eq=False, repr=False)
class Run:
    """One call of `fit`, from what a trainer gives to it."""

    trainer: object
    """What the algorithm is attached to."""
    algorithm: Algorithm
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    test_dataset: Dataset[Any] | None
    """Held-out samples."""
    initial_resources: NamedResources | None
    """What the caller gave; None leaves it to the algorithm."""
    rollout_config: RolloutConfig | None
    adapter: TraceAdapter[Any]
    store: LightningStore
    strategy: ExecutionStrategy
    runners: RunnersSide
    hooks: Hooks
    """Of the trainer, and of what follows this run alone."""
    first: FirstRollouts
    proxy: ModelProxy | None
    """The model proxy; None for none, and where the algorithm runs elsewhere."""
    budget: BudgetOfRun | None
    """None for no limit."""
    recording: Recording | None
    """None where nothing is written down."""
    display: "Display | None"
    """None where nothing is shown."""
    name: str
    """What the algorithm is called."""
    result: FitResult | None = None
    """None before its end; also of a run that raised, with the best so far."""

    def __post_init__(self) -> None:
        self._progress = Progress(self.recording)
        self._initial = self.initial_resources
        """What the run starts from, once that is known."""
        self._failed_before = self.hooks.failures
        self._started = time.monotonic()
        self._task: asyncio.Task[Any] | None = None
        self._is_led = False
        self._proxy_calls: int | None = None
        """How many calls the proxy of this process counted during the run; None where it is not known."""
        if self.display is not None and self.budget is not None:
            budget = self.budget
            self.display.standing.budget = lambda: budget.use

    async def execute(self) -> None:
        """Run to the end, which leaves its `result`."""
        self._task = asyncio.current_task()
        status: RunStatus = "failed"
        error: BaseException | None = None
        try:
            if self.recording is not None:
                await self.recording.take_over(self.store)
            async with AsyncExitStack() as during:
                if self.budget is not None:
                    await during.enter_async_context(self.budget.counting(self.store))
                if self.proxy is not None:
                    moved = await during.enter_async_context(proxied(self.proxy, self.store))
                    self._take_resources(self.proxy, moved)
                if self.budget is not None:
                    await during.enter_async_context(self.budget.watching())
                if self._initial is None:
                    self._initial = self.algorithm.get_initial_resources()
                rollouts = list(await self.store.query_rollouts())
                kept, _ = await count_rollouts(self.store, rollouts)
                await self.hooks.emit("lightning_run_start", run_id=self.store.run_id, kept=kept)
                if self.recording is not None and self.recording.is_resumed:
                    await self._tell_onlookers(rollouts)
                before = await self._count_proxy_calls()
                async with self._progress.telling(self.hooks):
                    status = await self._work()
                after = await self._count_proxy_calls()
                self._proxy_calls = None if before is None or after is None else after - before
        except asyncio.CancelledError:
            status = "interrupted"
            raise
        except Exception as exc:
            status, error = "failed", exc
            raise
        finally:
            if status != "succeeded":
                self._record_end(status, error=error)
            limit = 0.0 if status == "interrupted" else END_SECONDS
            await self.hooks.end_run(self.store.run_id, status, timeout_seconds=limit)
            if error is not None:
                await self._failed(error)
        await self._ended(status)

    async def _tell_onlookers(self, rollouts: Sequence[Rollout]) -> None:
        """Tell those who show the run what it has from before."""
        used = (await sum_usage(self.store, rollouts)).agent
        rewards = await rewards_in(self.store, rollouts)
        for onlooker in self.hooks:
            if isinstance(onlooker, Onlooker):
                onlooker.standing.take_over(used, rewards)

    async def _work(self) -> RunStatus:
        strategy = self.strategy
        try:
            if inspect.iscoroutinefunction(strategy.execute):
                await strategy.execute(self._run_algorithm, self.runners, self.store)
            else:
                older = former(f"{type(strategy).__name__}.execute is a plain function; write it as `async def`")
                await older.execute(strategy, self._run_algorithm, self.runners, self.store)
        except BudgetExhausted:
            if self.budget is None or self.budget.ended_by is None:
                raise
            return "budget"
        return "succeeded"

    async def _count_proxy_calls(self) -> int | None:
        if self.proxy is None or self.proxy.is_remote:  # it may serve other runs, too
            return None
        calls = (await self.proxy.status()).get("calls")
        return calls if isinstance(calls, int) else None

    async def interrupted(self) -> None:
        """Give a run that was interrupted a moment to end, and leave its result."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=INTERRUPTED_SECONDS)
        await self._ended("interrupted")

    async def _ended(self, status: RunStatus) -> None:
        result = self.result = await self._collect(status)
        if result.bypassed_proxy and self.proxy is not None:
            logger.warning(
                "lightning.proxy_bypassed run_id=%s: rollouts succeeded, and no model call came through the proxy; the "
                "agent's client may have a base URL of its own, or may not read the one that it is given; see the "
                "clients' variables in docs/coding-agents.md. For an agent that calls no model, leave llm_proxy out",
                self.store.run_id,
            )
        if self.recording is not None:
            self.recording.end(status, result=result)
        await self._show(result)

    async def _show(self, result: FitResult) -> None:
        """Show what came of the run before plugins are told, for their reports may take seconds."""
        if self.display is not None:
            self.display.stop()
            self._try(self.display.show_result, result)
        if self.recording is not None and result.status != "interrupted":
            await self.hooks.emit("lightning_run_recorded", folder=self.recording.folder, store=self.store)
        if self.display is not None:
            self._try(self.display.show_report, result)

    def _try(self, show: Callable[[FitResult], None], result: FitResult) -> None:
        try:
            show(result)
        except Exception:
            logger.exception("lightning.result_not_shown run_id=%s", self.store.run_id)

    async def _failed(self, error: BaseException) -> None:
        """Keep the result of a run that its error ends."""
        try:
            result = self.result = await self._collect("failed")
        except Exception as exc:
            if str(exc) != str(error):  # a store that is gone says the same again
                logger.warning("lightning.result_lost run_id=%s", self.store.run_id, exc_info=exc)
            return
        self._record_end("failed", result=result, error=error)
        await self._show(result)

    def _record_end(
        self, status: RunStatus, *, result: FitResult | None = None, error: BaseException | None = None
    ) -> None:
        """Write down how the run ended. A folder that takes nothing more does not hide what ended the run."""
        if self.recording is None:
            return
        try:
            self.recording.end(status, result=result, error=error)
        except RunFolderError as exc:
            logger.warning("lightning.end_not_recorded run_id=%s: %s", self.store.run_id, exc)

    async def _collect(self, status: RunStatus) -> FitResult:
        """Return the result of the run so far."""
        store = self.store
        rollouts = list(await store.query_rollouts())
        counts, failures = await count_rollouts(store, rollouts)
        usage = await sum_usage(store, rollouts)
        if metrics := usage.metrics:
            self._progress(metrics)
        stats = [worker.heartbeat_stats or {} for worker in await store.query_workers()]
        # Of an algorithm that takes longer to end than it may, too.
        initial = self.algorithm.get_initial_resources() if self._is_led else self._initial
        best = self._progress.best_resources
        return FitResult(
            run_id=self.store.run_id,
            status=status,
            best_resources=best,
            initial_resources=initial,
            metrics=dict(self._progress.metrics),
            rollouts=counts,
            failures=failures,
            duration_seconds=time.monotonic() - self._started,
            abandoned_agents=sum(each.get("abandoned_agents", 0) for each in stats),
            dropped_spans=sum(each.get("dropped_spans", 0) for each in stats),
            failed_hooks=failed_hooks(self._failed_before, self.hooks.failures),
            comparison=await compare(store, rollouts, initial=initial, best=best),
            usage=usage,
            budget=None if self.budget is None else self.budget.use,
            bypassed_proxy=status == "succeeded"
            and counts.succeeded > 0
            and any(isinstance(resource, ProxyLLM) for resource in (initial or {}).values())
            and (not usage.agent.calls or self._proxy_calls == 0),
            algorithm=self.name,
            folder=None if self.recording is None else self.recording.folder.path,
            is_in_memory=isinstance(store, InMemoryLightningStore),
        )

    def _take_resources(self, proxy: ModelProxy, moved: dict[str, str]) -> None:
        """Find out what the run starts from: with a model behind the proxy, where it has none."""
        given = self.algorithm.get_initial_resources() if self._initial is None else self._initial
        self._initial = with_model(given, proxy)
        if self._progress.best_resources is not None:
            self._progress.best_resources = readdressed(self._progress.best_resources, moved)

    async def _run_algorithm(self, store: LightningStore, event: object = None) -> None:
        algorithm = self.algorithm
        algorithm.set_trainer(self.trainer)
        algorithm.set_store(store)
        algorithm.set_adapter(self.adapter)
        resources = algorithm.get_initial_resources()
        algorithm.set_initial_resources(self._initial)
        algorithm.set_llm_proxy(self.proxy)
        algorithm.set_budget(None if self.budget is None else self.budget.budget)
        algorithm.set_rollout_config(self.rollout_config)
        algorithm.set_reporter(self._progress)
        algorithm.set_test_dataset(self.test_dataset if algorithm.measures_held_out else None)
        self._is_led = True
        try:
            self._expect_rollouts()
            is_async = algorithm.is_async()
            await self._do(
                "algorithm",
                partial(self.first.guard, partial(self._call_algorithm, is_async=is_async)),
                can_be_cancelled=is_async,
                end_seconds=algorithm.end_seconds,
            )
            if self.test_dataset is not None and not algorithm.measures_held_out:
                await self._do("held out", partial(self._measure, store, self.test_dataset))
        finally:
            algorithm.set_reporter(None)
            algorithm.set_test_dataset(None)
            self._is_led = False
            self._initial = algorithm.get_initial_resources()  # it may have said what it started from
            if self.initial_resources is None:
                algorithm.set_initial_resources(resources)  # the address of the proxy is this run's alone

    async def _do(
        self,
        part: str,
        work: Callable[[], Awaitable[None]],
        *,
        can_be_cancelled: bool = True,
        end_seconds: float = Algorithm.end_seconds,
    ) -> None:
        """Do a part of the run, as far as the budget goes, unless it was done before the run was taken up again."""
        if self.budget is not None:
            work = partial(self.budget.spend, work, can_be_cancelled=can_be_cancelled, end_seconds=end_seconds)
        if self.recording is not None:
            await self.recording.once(self.store, part, work)
        else:
            await work()

    def _expect_rollouts(self) -> None:
        """Tell the display how many rollouts there will be, where the algorithm knows it."""
        if self.display is None or self.display.standing.expected_rollouts is not None:
            return
        plan = plan_of(self.algorithm, self.train_dataset, self.val_dataset, self.test_dataset)
        self.display.standing.expected_rollouts = None if plan is None else plan.rollouts

    async def _measure(self, store: LightningStore, test_dataset: Dataset[Any]) -> None:
        await measure_held_out(
            store,
            test_dataset,
            # Of an algorithm that takes longer to end than it may, too.
            initial=self.algorithm.get_initial_resources() if self._is_led else self._initial,
            best=self._progress.best_resources,
            report=self._progress,
            config=self.rollout_config,
        )

    async def _call_algorithm(self, *, is_async: bool) -> None:
        algorithm = self.algorithm
        run = partial(algorithm.run, train_dataset=self.train_dataset, val_dataset=self.val_dataset)
        if is_async:
            call = run()
        else:
            try:
                call = await in_daemon_thread(run, name="algorithm")
            except asyncio.CancelledError:
                logger.warning("lightning.algorithm_abandoned run_id=%s; its thread goes on", self.store.run_id)
                raise
        if call is not None:  # also of a plain function around a coroutine function
            await call
        if self.recording is not None:
            self.recording.conclude(algorithm.conclude())
