"""One call of `Trainer.fit`: the parts of the trainer at work, and the result."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from lightning_core.adapter.base import TraceAdapter
from lightning_core.agent import LitAgent
from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.own_calls import cancel_own_calls
from lightning_core.budget import Budget
from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import BudgetExhausted, InvalidAgent, InvalidComponent, LightningError, RunFolderError
from lightning_core.execution import ExecutionStrategy
from lightning_core.former import former
from lightning_core.logs import warn_of_former_loggers
from lightning_core.model_proxy import ModelProxy
from lightning_core.plugins import Hooks
from lightning_core.runs import FitResult, Progress, RunStatus, compare, count_rollouts
from lightning_core.runs.first_rollouts import FirstRollouts
from lightning_core.runs.held_out import measure_held_out
from lightning_core.runs.manifest import Origin, describe_origin
from lightning_core.runs.recording import Recording
from lightning_core.runs.result import failed_hooks, rewards_in, sum_usage
from lightning_core.runs.retention import Retention
from lightning_core.runs.standing import Onlooker, plan_of, warn_of_overlap
from lightning_core.secrets import remember_environment, remember_secrets
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.trainer.budgeting import BudgetElsewhere, BudgetOfRun
from lightning_core.trainer.proxies import leads, proxied, readdressed, with_model
from lightning_core.trainer.runners import RunnersSide
from lightning_core.types import Dataset, NamedResources, ProxyLLM, RolloutConfig

if TYPE_CHECKING:
    from lightning_core.display.live import Display

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS = 1.0
"""How long a run may take to end after a second Ctrl-C."""

END_SECONDS = 30.0
"""How long plugins may take to end a run; after Ctrl-C each gets a moment."""


class TrainerParts(Protocol):
    """What a run takes from its trainer, and the result that it leaves there."""

    strategy: ExecutionStrategy
    adapter: TraceAdapter[Any]
    llm_proxy: ModelProxy | None
    initial_resources: NamedResources | None
    rollout_config: RolloutConfig | None
    keep_spans: int | None
    hooks: Hooks
    origin: Origin | None
    recording: Recording | None
    result: FitResult | None

    def next_store(self) -> LightningStore: ...
    def next_budget(self) -> Budget | None: ...
    def next_display(self) -> "Display | None": ...
    def first_rollouts(self, algorithm: Algorithm) -> FirstRollouts: ...
    def runners_side(self, agent: LitAgent[Any], hooks: Hooks) -> RunnersSide: ...


class Run:
    """One call of `fit`."""

    def __init__(
        self,
        trainer: TrainerParts,
        agent: object,
        algorithm: Algorithm | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        test_dataset: Dataset[Any] | None,
    ) -> None:
        if algorithm is None:
            raise LightningError(
                "this trainer has no algorithm; name one, as in Trainer(algorithm='baseline'), or run the agent for a "
                "run that is led elsewhere: agl worker CONFIG --store URL"
            )
        if not isinstance(agent, LitAgent):
            raise InvalidAgent(f"{agent!r} is not an agent; decorate the function with @rollout, or subclass LitAgent")
        self._datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        for name, dataset in {**self._datasets, "test_dataset": test_dataset}.items():
            _check_dataset(name, dataset)
        warn_of_former_loggers()
        remember_environment()
        remember_secrets("initial_resources", trainer.initial_resources)
        remember_secrets("model_list", getattr(trainer.llm_proxy, "model_list", None))
        warn_of_overlap(test_dataset, self._datasets)
        self._trainer = trainer
        self._algorithm = algorithm
        self._agent = agent
        self._test_dataset = test_dataset
        self._proxy = trainer.llm_proxy if leads(trainer.strategy) else None
        self._initial: NamedResources | None = None
        elsewhere = BudgetElsewhere(self._proxy) if self._proxy is not None and self._proxy.is_remote else None
        self._budget = BudgetOfRun(trainer.next_budget() if leads(trainer.strategy) else None, elsewhere=elsewhere)
        trainer.result = None
        self._store = trainer.next_store()
        self._recording = trainer.recording
        self._name = type(algorithm).__name__
        if self._recording is not None:
            origin = describe_origin() if trainer.origin is None else trainer.origin
            self._name = str(origin.config.get("algorithm", {}).get("name", self._name))
            self._recording.begin(
                algorithm=self._name, store=self._store, origin=origin, initial=trainer.initial_resources
            )
            self._recording.keep_tasks({**self._datasets, "test_dataset": test_dataset})
        self._first = trainer.first_rollouts(algorithm)
        self._hooks = trainer.hooks.also(self._first)
        if elsewhere is not None:
            self._hooks = self._hooks.also(elsewhere)
        if trainer.keep_spans is not None:
            self._hooks = self._hooks.also(Retention(self._store, trainer.keep_spans))
        self._display = trainer.next_display()
        if self._display is not None:
            self._hooks = self._hooks.also(self._display)
            self._display.standing.budget = lambda: self._budget.use
        self._progress = Progress(self._recording)
        self._started = time.monotonic()
        self._failed_before = trainer.hooks.failures
        self._task: asyncio.Task[Any] | None = None
        self._is_led = False
        self._proxy_calls: int | None = None
        """How many calls the proxy of this process counted during the run; None where it is not known."""

    async def execute(self) -> FitResult:
        """Run to the end."""
        self._task = asyncio.current_task()
        hooks, run_id = self._hooks, self._store.run_id
        status: RunStatus = "failed"
        error: BaseException | None = None
        try:
            if self._recording is not None:
                await self._recording.take_over(self._store)
                if self._recording.is_resumed:
                    await cancel_own_calls(self._store)
            async with (
                self._budget.counting(self._store),
                proxied(self._proxy, self._store) as moved,
                self._budget.watching(),
            ):
                self._take_resources(moved)
                rollouts = list(await self._store.query_rollouts())
                kept, _ = await count_rollouts(self._store, rollouts)
                await hooks.emit("lightning_run_start", run_id=run_id, kept=kept)
                if self._recording is not None and self._recording.is_resumed:
                    used = (await sum_usage(self._store, rollouts)).agent
                    rewards = await rewards_in(self._store, rollouts)
                    for onlooker in hooks:
                        if isinstance(onlooker, Onlooker):
                            onlooker.standing.take_over(used, rewards)
                before = await self._count_proxy_calls()
                async with self._progress.telling(hooks):
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
            await hooks.end_run(run_id, status, timeout_seconds=limit)
            if error is not None:
                await self._failed(error)
        return await self._ended(status)

    async def _work(self) -> RunStatus:
        try:
            runners = self._trainer.runners_side(self._agent, self._hooks)
            strategy = self._trainer.strategy
            if inspect.iscoroutinefunction(strategy.execute):
                await strategy.execute(self._run_algorithm, runners, self._store)
            else:
                older = former(f"{type(strategy).__name__}.execute is a plain function; write it as `async def`")
                await older.execute(strategy, self._run_algorithm, runners, self._store)
        except BudgetExhausted:
            if self._budget.ended_by is None:
                raise
            return "budget"
        return "succeeded"

    async def _count_proxy_calls(self) -> int | None:
        if self._proxy is None or self._proxy.is_remote:  # it may serve other runs, too
            return None
        calls = (await self._proxy.status()).get("calls")
        return calls if isinstance(calls, int) else None

    async def interrupted(self) -> FitResult:
        """Give a run that was interrupted a moment to end, and return its result."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=INTERRUPTED_SECONDS)
        return await self._ended("interrupted")

    def close(self) -> None:
        """Let go of what only one run may have."""
        if self._recording is not None:
            self._recording.close()

    async def _ended(self, status: RunStatus) -> FitResult:
        result = self._trainer.result = await self.result(status)
        if result.bypassed_proxy and self._proxy is not None:
            logger.warning(
                "lightning.proxy_bypassed run_id=%s: rollouts succeeded, and no model call came through the proxy; the "
                "agent's client may have a base URL of its own, or may not read the one that it is given; see the "
                "clients' variables in docs/coding-agents.md. For an agent that calls no model, leave llm_proxy out",
                self._store.run_id,
            )
        if self._recording is not None:
            self._recording.end(status, result=result)
        await self._show(result)
        return result

    async def _show(self, result: FitResult) -> None:
        """Show what came of the run before plugins are told, for their reports may take seconds."""
        if self._display is not None:
            self._display.stop()
            self._try(self._display.show_result, result)
        if self._recording is not None and result.status != "interrupted":
            await self._hooks.emit("lightning_run_recorded", folder=self._recording.folder, store=self._store)
        if self._display is not None:
            self._try(self._display.show_report, result)

    def _try(self, show: Callable[[FitResult], None], result: FitResult) -> None:
        try:
            show(result)
        except Exception:
            logger.exception("lightning.result_not_shown run_id=%s", self._store.run_id)

    async def _failed(self, error: BaseException) -> None:
        """Keep the result of a run that its error ends."""
        try:
            result = self._trainer.result = await self.result("failed")
        except Exception as exc:
            if str(exc) != str(error):  # a store that is gone says the same again
                logger.warning("lightning.result_lost run_id=%s", self._store.run_id, exc_info=exc)
            return
        self._record_end("failed", result=result, error=error)
        await self._show(result)

    def _record_end(
        self, status: RunStatus, *, result: FitResult | None = None, error: BaseException | None = None
    ) -> None:
        """Write down how the run ended. A folder that takes nothing more does not hide what ended the run."""
        if self._recording is None:
            return
        try:
            self._recording.end(status, result=result, error=error)
        except RunFolderError as exc:
            logger.warning("lightning.end_not_recorded run_id=%s: %s", self._store.run_id, exc)

    async def result(self, status: RunStatus) -> FitResult:
        """Return the result of the run so far."""
        rollouts = list(await self._store.query_rollouts())
        counts, failures = await count_rollouts(self._store, rollouts)
        usage = await sum_usage(self._store, rollouts)
        self._progress(usage.metrics)
        workers = await self._store.query_workers()
        stats = [worker.heartbeat_stats or {} for worker in workers]
        # Of an algorithm that takes longer to end than it may, too.
        initial = self._algorithm.get_initial_resources() if self._is_led else self._initial
        best = self._progress.best_resources
        return FitResult(
            run_id=self._store.run_id,
            status=status,
            best_resources=best,
            initial_resources=initial,
            metrics=dict(self._progress.metrics),
            rollouts=counts,
            failures=failures,
            duration_seconds=time.monotonic() - self._started,
            abandoned_agents=sum(each.get("abandoned_agents", 0) for each in stats),
            dropped_spans=sum(each.get("dropped_spans", 0) for each in stats),
            failed_hooks=failed_hooks(self._failed_before, self._trainer.hooks.failures, workers=workers),
            comparison=await compare(self._store, rollouts, initial=initial, best=best),
            usage=usage,
            budget=self._budget.use,
            bypassed_proxy=status == "succeeded"
            and counts.succeeded > 0
            and any(isinstance(resource, ProxyLLM) for resource in (initial or {}).values())
            and (not usage.agent.calls or self._proxy_calls == 0),
            algorithm=self._name,
            folder=None if self._recording is None else self._recording.folder.path,
            is_in_memory=isinstance(self._store, InMemoryLightningStore),
        )

    def _take_resources(self, moved: dict[str, str]) -> None:
        """Find out what the run starts from: with a model behind the proxy, where it has none."""
        given = self._trainer.initial_resources
        self._initial = with_model(self._algorithm.get_initial_resources() if given is None else given, self._proxy)
        if self._progress.best_resources is not None:
            self._progress.best_resources = readdressed(self._progress.best_resources, moved)

    async def _run_algorithm(self, store: LightningStore, event: object = None) -> None:
        algorithm = self._algorithm
        algorithm.set_trainer(self._trainer)
        algorithm.set_store(store)
        algorithm.set_adapter(self._trainer.adapter)
        own = algorithm.get_initial_resources()
        algorithm.set_initial_resources(self._initial)
        algorithm.set_llm_proxy(self._proxy)
        algorithm.set_budget(self._budget.budget)
        algorithm.set_rollout_config(self._trainer.rollout_config)
        algorithm.set_reporter(self._progress)
        algorithm.set_test_dataset(self._test_dataset if algorithm.measures_held_out else None)
        self._is_led = True
        try:
            self._expect_rollouts()
            await self._do(
                "algorithm",
                partial(self._first.guard, self._call_algorithm),
                can_be_cancelled=algorithm.is_async(),
                end_seconds=algorithm.end_seconds,
            )
            await self._do("held out", partial(self._measure, store))
        finally:
            algorithm.set_reporter(None)
            algorithm.set_test_dataset(None)
            self._is_led = False
            self._initial = algorithm.get_initial_resources()  # it may have said what it started from
            if self._trainer.initial_resources is None:
                algorithm.set_initial_resources(own)  # the address of the proxy is this run's alone

    async def _do(
        self,
        part: str,
        work: Callable[[], Awaitable[None]],
        *,
        can_be_cancelled: bool = True,
        end_seconds: float = Algorithm.end_seconds,
    ) -> None:
        """Do a part of the run, as far as the budget goes, unless it was done before the run was taken up again."""
        spend = partial(self._budget.spend, work, can_be_cancelled=can_be_cancelled, end_seconds=end_seconds)
        if self._recording is None:
            await spend()
        else:
            await self._recording.once(self._store, part, spend)

    def _expect_rollouts(self) -> None:
        """Tell the display how many rollouts there will be, where the algorithm knows it."""
        if self._display is None or self._display.standing.expected_rollouts is not None:
            return
        plan = plan_of(self._algorithm, **self._datasets, test_dataset=self._test_dataset)
        self._display.standing.expected_rollouts = None if plan is None else plan.rollouts

    async def _measure(self, store: LightningStore) -> None:
        if self._test_dataset is not None and not self._algorithm.measures_held_out:
            await measure_held_out(
                store,
                self._test_dataset,
                # Of an algorithm that takes longer to end than it may, too.
                initial=self._algorithm.get_initial_resources() if self._is_led else self._initial,
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
        if self._recording is not None:
            self._recording.conclude(self._algorithm.conclude())


def _check_dataset(name: str, dataset: object) -> None:
    is_sequence = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if dataset is not None and (not is_sequence or isinstance(dataset, str | bytes | Mapping)):
        raise InvalidComponent(
            f"{name} is a {type(dataset).__name__}; a dataset has a length and is read by index, as a list is"
        )
