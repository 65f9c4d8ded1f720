"""The trainer: puts the parts together, and runs them."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from lightning_core.agent import Grader, LitAgent
from lightning_core.algorithm import Algorithm, Baseline, FastAlgorithm
from lightning_core.errors import ConfigError, InvalidAgent, InvalidComponent, LightningError
from lightning_core.execution import ExecutionStrategy
from lightning_core.plugins import Hooks
from lightning_core.registry import Registry, default_registry
from lightning_core.runner import Runner
from lightning_core.runner.calls import in_daemon_thread
from lightning_core.runs import FitResult, Progress, RunStatus, count_rollouts
from lightning_core.runs.event_loop import event_loop
from lightning_core.runs.held_out import measure_held_out
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer
from lightning_core.types import Dataset, NamedResources, PromptTemplate, RolloutConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Datasets = Mapping[str, Dataset[Any] | None]

INTERRUPTED_SECONDS = 1.0
"""How long a run may take to end after a second Ctrl-C."""

END_SECONDS = 30.0
"""How long plugins may take to end a run; after Ctrl-C each gets a moment."""


class Trainer:
    """Wires an algorithm, a store, runners and a tracer together, and runs them on an agent.

    Each component is given as an instance, a class, a registered name (`"apo"`), a name with options
    (`{"name": "apo", "beam_width": 2}`) or an import path (`"package.module:Class"`).

    Args:
        algorithm: What tunes the resources. `fit` needs one.
        store: Where everything is kept.
        tracer: What records what the agent does.
        adapter: What makes training data of spans, for algorithms that want it.
        runner: What runs the agent. One instance is one runner, so with several runners it is given otherwise.
        strategy: Where the algorithm and the runners live.
        n_runners: How many rollouts run at the same time; None for the strategy's default.
        max_rollouts: How many rollouts each runner runs; None for no limit.
        initial_resources: What the algorithm starts from.
        rollout_config: Limits and retry policy of each rollout, such as `RolloutConfig(timeout_seconds=60)`.
        reward: Scores what the agent returned, or what its trace says: a function, its path or a `Grader`, which see.
            None where agents score themselves.
        hooks: One plugin with hooks, or several (see `lightning_core.hookspecs`), besides those that are installed.
        registry: Where names are looked up; None for what is installed.

    Raises:
        RegistryError: When a component cannot be found, loaded or built, or when an instance was made with other
            options than those given here; says what is possible.
    """

    def __init__(
        self,
        *,
        algorithm: object = None,
        store: object = "memory",
        tracer: object = "otel",
        adapter: object = "triplet",
        runner: object = "agent",
        strategy: object = "local",
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        initial_resources: NamedResources | None = None,
        rollout_config: RolloutConfig | None = None,
        reward: Grader | Callable[..., Any] | str | None = None,
        hooks: object = (),
        registry: Registry | None = None,
    ) -> None:
        # Here, so that whoever imports the trainer does not pay for adapters.
        from lightning_core.adapter import TraceAdapter

        self._registry = default_registry() if registry is None else registry
        self._runner_spec = runner
        self.max_rollouts = max_rollouts
        _check_prompts(initial_resources)
        self.initial_resources = initial_resources
        self.rollout_config = rollout_config
        self.reward = Grader.of(reward)
        self.algorithm: Algorithm | None = (
            None if algorithm is None else self._build("algorithms", algorithm, Algorithm)
        )
        self.store: LightningStore = self._build("stores", store, LightningStore)
        self.tracer: Tracer = self._build("tracers", tracer, Tracer)
        self.adapter: TraceAdapter[Any] = self._build("adapters", adapter, TraceAdapter)
        self.strategy: ExecutionStrategy = self._build(
            "strategies",
            strategy,
            ExecutionStrategy,
            {} if n_runners is None else {"n_runners": n_runners},
        )
        self._check_strategy(n_runners)
        self._check_runner()
        self.hooks = Hooks(hooks, load_entry_points=True, registry=self._registry)
        self._first_run_id = self.store.run_id
        self._fits = 0
        self._is_running = False
        self._lock = threading.Lock()

    def fit(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        test_dataset: Dataset[Any] | None = None,
    ) -> FitResult:
        """Run the algorithm on an agent, and return what came of it.

        Ctrl-C ends the run within two seconds; the result is then `interrupted`, with the best so far. What cannot be
        stopped is left behind: a sync agent or algorithm in its daemon thread, a task that swallows its cancellation.
        An async agent that blocks the event loop blocks this too.

        Args:
            agent: Does the tasks.
            train_dataset: The samples to learn from.
            val_dataset: The samples to choose by.
            test_dataset: Held-out samples, which the algorithm never sees. The initial and the best resources are
                measured on them at the end: metrics `test_reward_initial` and `test_reward`. Where there are neither,
                `test_reward` is that of the agent as it is.

        Raises:
            LightningError: Without an algorithm, within a running event loop (use `fit_async` there), or while this
                trainer runs already.
            Exception: What the algorithm raised.
        """
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset, "test_dataset": test_dataset}
        return self._fit(agent, self.algorithm, datasets)

    def dev(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> FitResult:
        """Try everything out with an algorithm that takes moments: `fit`, but with `Baseline` where there is none.

        Raises:
            LightningError: As `fit`; and when the trainer's algorithm is no `FastAlgorithm`.
            Exception: What the algorithm raised.
        """
        algorithm = Baseline() if self.algorithm is None else self.algorithm
        if not isinstance(algorithm, FastAlgorithm):
            raise InvalidComponent(
                f"dev takes a FastAlgorithm, and {type(algorithm).__name__} is none; call fit, or give no algorithm"
            )
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset, "test_dataset": None}
        return self._fit(agent, algorithm, datasets)

    async def fit_async(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        test_dataset: Dataset[Any] | None = None,
    ) -> FitResult:
        """Do what `fit` does in the running event loop. Cancelling it ends the run."""
        datasets = {"train_dataset": train_dataset, "val_dataset": val_dataset, "test_dataset": test_dataset}
        with self._new_run(agent, self.algorithm, datasets) as run:
            return await run.execute()

    def make_runner(self) -> Runner:
        """Make one of the runners."""
        options: dict[str, Any] = {"tracer": self.tracer}
        if self.max_rollouts is not None:
            options["max_rollouts"] = self.max_rollouts
        if self.reward is not None:
            options["reward"] = self.reward
        return self._build("runners", self._runner_spec, Runner, options)

    def _start_run(self) -> LightningStore:
        """Return the store of a new run: the trainer's own for its first one, the same store's next run later."""
        if self._fits:
            self.store = self.store.for_run(f"{self._first_run_id}-{self._fits + 1}")
        self._fits += 1
        return self.store

    def _fit(self, agent: object, algorithm: Algorithm | None, datasets: "_Datasets") -> FitResult:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise LightningError("fit was called in a running event loop; use: await trainer.fit_async(...)")
        with self._new_run(agent, algorithm, datasets) as run, event_loop() as loop:
            try:
                return loop.run(run.execute())
            except KeyboardInterrupt:
                # After a second Ctrl-C the tasks are still there: none of them may begin to do anything.
                for task in asyncio.all_tasks(loop.get_loop()):
                    task.cancel()
                return loop.run(run.interrupted())

    @contextmanager
    def _new_run(self, agent: object, algorithm: Algorithm | None, datasets: "_Datasets") -> Iterator["_Run"]:
        """Make a run, which has the trainer to itself during the block: its parts have one store and one reporter."""
        with self._lock:
            if self._is_running:
                raise LightningError("this trainer runs already; make another Trainer for a run beside it")
            run = _Run(self, agent, algorithm, **datasets)
            self._is_running = True
        try:
            yield run
        finally:
            self._is_running = False

    def _check_strategy(self, n_runners: int | None) -> None:
        has = getattr(self.strategy, "n_runners", n_runners)
        if n_runners is not None and has != n_runners:
            raise InvalidComponent(
                f"n_runners is {n_runners}, but the strategy was given with n_runners={has}; say it in one place"
            )

    def _check_runner(self) -> None:
        """Make a runner, so that a wrong one is known before a run starts."""
        runner = self.make_runner()
        n_runners = getattr(self.strategy, "n_runners", 1)
        if n_runners != 1 and self.make_runner() is runner:
            raise InvalidComponent(
                f"runner is one instance of {type(runner).__name__}, but there are {n_runners} runners; "
                "give its class, its name or a dict with its options"
            )
        has = getattr(runner, "max_rollouts", self.max_rollouts)
        if self.max_rollouts is not None and has != self.max_rollouts:
            raise InvalidComponent(
                f"max_rollouts is {self.max_rollouts}, but the runner was given with max_rollouts={has}; "
                "say it in one place"
            )
        if self.reward is not None and getattr(runner, "reward", None) is not self.reward:
            raise InvalidComponent(
                f"reward is grader {self.reward.name}, but the runner, a {type(runner).__name__}, takes none or was "
                "given with another one; say it in one place"
            )

    def _build(self, kind: Any, spec: object, expected: type[T], defaults: Mapping[str, Any] | None = None) -> T:
        return self._registry.build(kind, spec, expected=expected, defaults=defaults or {})


def _check_prompts(resources: NamedResources | None) -> None:
    """Refuse a broken prompt before it fails once for each sample, or is improved on."""
    for name, resource in (resources or {}).items():
        if isinstance(resource, PromptTemplate):
            try:
                resource.placeholders()
            except ValueError as exc:
                raise ConfigError(f"initial_resources: {name}: {exc}") from exc


def _check_dataset(name: str, dataset: object) -> None:
    is_sequence = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if dataset is not None and (not is_sequence or isinstance(dataset, str | bytes | Mapping)):
        raise InvalidComponent(
            f"{name} is a {type(dataset).__name__}; a dataset has a length and is read by index, as a list is"
        )


class _Run:
    """One call of `fit`."""

    def __init__(
        self,
        trainer: Trainer,
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
        self._trainer = trainer
        self._algorithm = algorithm
        self._agent = agent
        self._test_dataset = test_dataset
        self._store = trainer._start_run()
        self._progress = Progress()
        self._started = time.monotonic()
        self._task: asyncio.Task[Any] | None = None

    async def execute(self) -> FitResult:
        """Run to the end."""
        self._task = asyncio.current_task()
        hooks, run_id = self._trainer.hooks, self._store.run_id
        status: RunStatus = "failed"
        try:
            await hooks.emit("lightning_run_start", run_id=run_id)
            async with self._progress.telling(hooks):
                await self._trainer.strategy.execute(self._run_algorithm, self._run_runner, self._store)
            status = "succeeded"
        except asyncio.CancelledError:
            status = "interrupted"
            raise
        finally:
            limit = 0.0 if status == "interrupted" else END_SECONDS
            await hooks.end_run(run_id, status, timeout_seconds=limit)
        return await self.result(status)

    async def interrupted(self) -> FitResult:
        """Give a run that was interrupted a moment to end, and return what has come of it."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=INTERRUPTED_SECONDS)
        return await self.result("interrupted")

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
        )

    async def _run_algorithm(self, store: LightningStore) -> None:
        algorithm = self._algorithm
        algorithm.set_trainer(self._trainer)
        algorithm.set_store(store)
        algorithm.set_adapter(self._trainer.adapter)
        algorithm.set_initial_resources(self._trainer.initial_resources)
        algorithm.set_rollout_config(self._trainer.rollout_config)
        algorithm.set_reporter(self._progress)
        try:
            await self._call_algorithm()
            if self._test_dataset is not None:
                await measure_held_out(
                    store,
                    self._test_dataset,
                    initial=self._trainer.initial_resources,
                    best=self._progress.best_resources,
                    report=self._progress,
                    config=self._trainer.rollout_config,
                )
        finally:
            algorithm.set_reporter(None)

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

    async def _run_runner(self, store: LightningStore, worker_id: int) -> None:
        runner = self._trainer.make_runner()
        self._agent.set_trainer(self._trainer)
        with runner.run_context(agent=self._agent, store=store, hooks=self._trainer.hooks, worker_id=worker_id):
            await runner.iter()
