"""The trainer: puts the parts together, and runs them."""

import asyncio
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from lightning_core.adapter.base import TraceAdapter
from lightning_core.agent import Grader, LitAgent
from lightning_core.agent.graders import GraderSpec
from lightning_core.algorithm import Algorithm, Baseline, FastAlgorithm
from lightning_core.budget import Budget
from lightning_core.concurrency import event_loop
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError, InvalidAgent, InvalidComponent, LightningError
from lightning_core.execution import ExecutionStrategy
from lightning_core.execution.local import LocalStrategy, leads
from lightning_core.model_proxy import ModelProxy
from lightning_core.plugins import Hooks, in_sequence
from lightning_core.registry import Kind, Spec, default_registry
from lightning_core.runner import Runner
from lightning_core.runs import FitResult, RunFolder
from lightning_core.runs.first_rollouts import FirstRollouts
from lightning_core.runs.held_out import warn_of_overlap
from lightning_core.runs.loggers import RunLogger
from lightning_core.runs.manifest import Origin, describe_origin
from lightning_core.runs.recording import Recording, start_recording
from lightning_core.runs.retention import Retention
from lightning_core.secrets import remember_environment, remember_secrets
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.tracer import Tracer
from lightning_core.trainer.budgeting import BudgetElsewhere, BudgetOfRun, check_budget
from lightning_core.trainer.proxies import make_proxy
from lightning_core.trainer.run import Run
from lightning_core.trainer.runners import RunnerFactory, RunnersSide
from lightning_core.types import Dataset, NamedResources, PromptTemplate, Resource, RolloutConfig

if TYPE_CHECKING:
    from lightning_core.adapter.triplet import TracerTraceToTriplet
    from lightning_core.display.live import Display
    from lightning_core.tracer.otel import OtelTracer


T = TypeVar("T")


class _Datasets(TypedDict):
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    test_dataset: Dataset[Any] | None


class Trainer:
    """Wires an algorithm, a store, runners and a tracer together, and runs them on an agent.

    Each component is given as an instance, a class, a registered name (`"apo"`), a name with options
    (`{"name": "apo", "beam_width": 2}`) or an import path (`"package.module:Class"`). The forms of agentlightning 0.3
    are taken, too: `{"type": "package.module.Class", option: value}`, `"package.module.Class"`, None for the default,
    and for the adapter its options alone.

    Args:
        algorithm: What tunes the resources. `fit` needs one.
        store: Where everything is kept; None for one in the run's folder, see `run_dir`, else for `memory`.
        tracer: What records what the agent does; None for `otel`.
        adapter: What makes training data of spans, for algorithms that want it; None for `triplet`.
        runner: What runs the agent. One instance is one runner, so with several runners it is given otherwise.
        strategy: Where the algorithm and the runners live; None for `local`.
        n_runners: How many rollouts run at the same time; None for the strategy's default.
        max_rollouts: How many rollouts each runner runs; None for no limit.
        initial_resources: What the algorithm starts from.
        rollout_config: Limits and retry policy of each rollout, such as `RolloutConfig(timeout_seconds=60)`.
        keep_spans: How many of the algorithm's newest steps, at least, keep what was said in their rollouts. Of older
            ones a store keeps numbers, rewards and names; see `LightningStore.drop_content`. None keeps all.
        reward: Scores what the agent returned, or what its trace says: a function, an import path, a `Grader`, or a
            named one with its options, such as `{"name": "judge", "rubric": "..."}`. None where agents score
            themselves.
        hooks: One plugin with hooks, or several (see `lightning_core.hookspecs`), besides those that are installed.
        loggers: Where the run's numbers are written, too, such as `["tensorboard"]`; see `RunLogger`.
        port: Where a strategy that serves the store listens; without a strategy that is `processes`. A warning with
            any other.
        run_dir: The folder in which each run gets a folder of its own, as `runs`; or a `RunFolder`, that of a run that
            was killed, to go on with it. Where no store is given, a run then has a store in its folder, made when it
            starts: of SQLite where lightning-sqlite is installed, else in memory. None to write nothing down.
        llm_proxy: The model proxy, which runs while a run does, in the algorithm's process: its options such as
            `{"model_list": [...], "port": 0}`, an `LLMProxy`, or True for one whose models the algorithm gives it. Or
            the URL of one that runs by itself. Agents whose resources have no model get the first of its models, as
            `main_llm`. None for none.
        budget: What each run may use at most, as `{"usd": 5, "tokens": 1_000_000, "calls": 10_000, "seconds": 3600}`,
            each of which may be left out: the calls of the agent, of its grader and of the algorithm together, as the
            proxy counts them. The run then ends with its best so far, status `budget`. A `Budget` is that of all runs
            of this trainer together.
        stop_on_identical_failures: Whether a run ends with `NoRewards` when its first rollouts (two for each runner, at
            least 8) have all failed for the same reason and none has succeeded: the agent raised, returned something
            wrong, ran out of its time, or did not reach its model. An algorithm that is not async is not ended.
        progress: Whether a run is shown while it goes on, with a summary at its end, as `agl train` shows it: a panel
            where stderr is a terminal, else lines. None shows it on a terminal and in a notebook, True always, False
            never. A `Display` is told of the run, and shows what it likes.

    Raises:
        RegistryError: When a component cannot be found, loaded or built, or when an instance was made with other
            options than those given here; says what is possible.
    """

    @deprecated(
        renamed={"n_workers": "n_runners", "max_tasks": "max_rollouts", "triplet_exporter": "adapter"},
        without_effect={
            "dev": "call trainer.dev(...) instead of trainer.fit(...)",
            "daemon": "nothing outlives a run",
        },
    )
    def __init__(
        self,
        *,
        algorithm: Spec[Algorithm] | None = None,
        store: Spec[LightningStore] | None = None,
        tracer: Spec[Tracer] | None = None,
        adapter: Spec[TraceAdapter[Any]] | None = None,
        runner: Spec[Runner] | None = None,
        strategy: Spec[ExecutionStrategy] | None = None,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        initial_resources: NamedResources | None = None,
        rollout_config: RolloutConfig | None = None,
        keep_spans: int | None = None,
        reward: GraderSpec | None = None,
        hooks: object = (),
        loggers: Sequence[Spec[RunLogger]] = (),
        port: int | None = None,
        run_dir: str | os.PathLike[str] | RunFolder | None = None,
        llm_proxy: Spec[ModelProxy] | bool | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        stop_on_identical_failures: bool = True,
        progress: "bool | Display | None" = None,
    ) -> None:
        self._runner = runner
        self.max_rollouts = max_rollouts
        _check_resources(initial_resources)
        self.initial_resources = initial_resources
        self.rollout_config = None if rollout_config is None else RolloutConfig.model_validate(rollout_config)
        if keep_spans is not None and keep_spans < 1:
            raise ConfigError(f"keep_spans is {keep_spans}; it is a number of steps from 1 on, or None to keep all")
        self.keep_spans = keep_spans
        self.reward = None if reward is None else Grader.of(reward)
        self.algorithm: Algorithm | None = (
            None if algorithm is None else self._build("algorithms", algorithm, Algorithm)
        )
        if keep_spans is not None and self.algorithm is not None and self.algorithm.reads_older_steps:
            raise ConfigError(
                f"keep_spans is {keep_spans}, and {type(self.algorithm).__name__} reads what was said in all steps "
                "when it is resumed; leave keep_spans out"
            )
        default_tracer, default_adapter = _late_defaults()
        self.store = self._build("stores", InMemoryLightningStore() if store is None else store, LightningStore)
        self.tracer = self._build("tracers", default_tracer() if tracer is None else tracer, Tracer)
        self.adapter = self._build("adapters", default_adapter() if adapter is None else adapter, TraceAdapter)
        sizes = {name: value for name, value in (("n_runners", n_runners), ("server_port", port)) if value is not None}
        self.strategy: ExecutionStrategy = (
            LocalStrategy(**sizes)
            if strategy is None and port is None
            else self._build("strategies", _strategy_form(strategy, port), ExecutionStrategy, sizes)
        )
        has = getattr(self.strategy, "n_runners", n_runners)
        if n_runners not in (None, has):
            warnings.warn(
                f"n_runners={n_runners} has no effect: the strategy was given with n_runners={has}; leave it out",
                stacklevel=3,
            )
        self.port = port
        if port is not None and not hasattr(self.strategy, "server_port"):
            name = type(self.strategy).__name__
            warnings.warn(f"port={port} has no effect: {name} serves no store there; leave it out", stacklevel=3)
        elif port is not None:
            self.strategy.server_port = port  # type: ignore[attr-defined]  # a strategy that serves the store has it
        self.runner = self.make_runner()
        """A runner as those are that run the agent; each of them is made anew."""
        self._check_runner()
        self.llm_proxy: ModelProxy | None = None
        """The model proxy, or None."""
        if llm_proxy is not None:
            self.llm_proxy = make_proxy(llm_proxy, store=self.store, strategy=self.strategy)
        self._budget = None
        if budget is not None or self.llm_proxy is not None:
            self._budget = check_budget(budget, self.llm_proxy)
        self._plugins: Sequence[object] = tuple(in_sequence(hooks))
        built = [self._build("loggers", logger, RunLogger) for logger in in_sequence(loggers)] if loggers else []
        self.hooks = Hooks([*self._plugins, *built], load_entry_points=True)
        self._stop_on_identical_failures = stop_on_identical_failures
        self._progress = progress
        self._first_run_id: str | None = None
        self._run_dir = run_dir
        self._has_store = store is not None
        self.recording: Recording | None = None
        """The folder of the run that goes on, or of the last one; None where nothing is written down."""
        self.origin: Origin | None = None
        """What a run is made of, for its folder; None to find out what a program can tell."""
        self.result: FitResult | None = None
        """The result of the last run; also of one that raised, with the best so far. None while there is none."""
        self._fits = 0
        self._is_running = False
        self._lock = threading.Lock()

    @property
    def n_runners(self) -> int:
        """How many runners there are here, as far as the strategy says; 1 where it does not."""
        return int(getattr(self.strategy, "n_runners", 1))

    @property
    def n_workers(self) -> int:
        """What 0.2 called `n_runners`."""
        return self.n_runners

    def fit(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
        test_dataset: Dataset[Any] | None = None,
    ) -> FitResult:
        """Run the algorithm on an agent, and return the result.

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
        datasets = _Datasets(train_dataset=train_dataset, val_dataset=val_dataset, test_dataset=test_dataset)
        return self._fit(agent, self.algorithm, datasets)

    def dev(
        self,
        agent: LitAgent[Any],
        train_dataset: Dataset[Any] | None = None,
        *,
        val_dataset: Dataset[Any] | None = None,
    ) -> FitResult:
        """Try everything out with a fast algorithm: `fit`, but with `Baseline` where there is none.

        Raises:
            LightningError: As `fit`; and when the trainer's algorithm is no `FastAlgorithm`.
            Exception: What the algorithm raised.
        """
        algorithm = Baseline() if self.algorithm is None else self.algorithm
        if not isinstance(algorithm, FastAlgorithm):
            raise InvalidComponent(
                f"dev takes a FastAlgorithm, and {type(algorithm).__name__} is not one; call fit, or give no algorithm"
            )
        datasets = _Datasets(train_dataset=train_dataset, val_dataset=val_dataset, test_dataset=None)
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
        datasets = _Datasets(train_dataset=train_dataset, val_dataset=val_dataset, test_dataset=test_dataset)
        with self._new_run(agent, self.algorithm, datasets) as run:
            await run.execute()
        return cast("FitResult", run.result)

    def make_runner(self) -> Runner:
        """Make one of the runners."""
        return self._runner_factory()()

    def runners_side(self, agent: LitAgent[Any], hooks: Hooks | None = None) -> RunnersSide:
        """Return the runners' side of a run of an agent, which a strategy runs here or sends to other processes."""
        hooks = self.hooks if hooks is None else hooks
        return RunnersSide(agent, self._runner_factory(), self._plugins, hooks, trainer=self, proxy=self.llm_proxy)

    def next_budget(self) -> Budget | None:
        """Return what a new run may use."""
        budget = None if self._budget is None else Budget.of(self._budget)
        if self.llm_proxy is not None and not self.llm_proxy.is_running() and not self.llm_proxy.is_remote:
            self.llm_proxy.budget = budget
        return budget

    def _runner_factory(self) -> RunnerFactory:
        return RunnerFactory(self._runner, self.tracer, self.max_rollouts, self.reward)

    def _next_store(self) -> LightningStore:
        """Return the store of a new run.

        That is the trainer's own for its first one, and the same store's next run later; or one in the run's folder.
        """
        if self._first_run_id is None:
            self._first_run_id = self.store.find_run_id()
        if self._fits and (self._has_store or self._run_dir is None):
            self.store = self.store.for_run(f"{self._first_run_id}-{self._fits + 1}")
        self._fits += 1
        if self._run_dir is not None:
            place = self._run_dir
            if isinstance(place, RunFolder):  # for the first run; the next one is beside it
                self._run_dir = place.path.parent
            store = self.store if self._has_store else None
            self.recording, self.store = start_recording(place, store)
        return self.store

    def _next_display(self) -> "Display | None":
        progress = self._progress
        if progress is False or (progress is None and not is_watched()):
            return None
        from lightning_core.display.live import Display, display_here  # late: rich takes time

        if progress is None or progress is True:
            return display_here()
        if not isinstance(progress, Display):
            raise InvalidComponent(
                f"progress is {progress!r}; give True, False, None or a lightning_core.display.live.Display"
            )
        return progress

    def _next_run(self, agent: object, algorithm: Algorithm | None, datasets: "_Datasets") -> Run:
        """Check what a new run is given, and make it."""
        if algorithm is None:
            raise LightningError(
                "this trainer has no algorithm; name one, as in Trainer(algorithm='baseline'), or run the agent for a "
                "run that is led elsewhere: agl worker CONFIG --store URL"
            )
        if not isinstance(agent, LitAgent):
            raise InvalidAgent(f"{agent!r} is not an agent; decorate the function with @rollout, or subclass LitAgent")
        for name, dataset in datasets.items():
            _check_dataset(name, dataset)
        remember_environment()
        remember_secrets("initial_resources", self.initial_resources)
        remember_secrets("model_list", getattr(self.llm_proxy, "model_list", None))
        if (test := datasets["test_dataset"]) is not None:
            warn_of_overlap(test, {name: datasets[name] for name in ("train_dataset", "val_dataset")})
        self.result = None
        is_led_here = leads(self.strategy)
        proxy = self.llm_proxy if is_led_here else None
        elsewhere = BudgetElsewhere(proxy) if proxy is not None and proxy.is_remote else None
        limits = self.next_budget() if is_led_here else None
        store, name = self._next_store(), type(algorithm).__name__
        if self.recording is not None:
            origin = describe_origin() if self.origin is None else self.origin
            name = str(origin.config.get("algorithm", {}).get("name", name))
            self.recording.begin(algorithm=name, store=store, origin=origin, initial=self.initial_resources)
            self.recording.keep_tasks(datasets)
        first = FirstRollouts(
            self.n_runners * int(getattr(self.strategy, "concurrency", 1)),
            stops=self._stop_on_identical_failures and algorithm.is_async(),
            unrecorded=self.tracer.unrecorded_clients if self.llm_proxy is None else None,
        )
        display = self._next_display()
        retention = None if self.keep_spans is None else Retention(store, self.keep_spans)
        hooks = self.hooks.also(*(each for each in (first, elsewhere, retention, display) if each is not None))
        return Run(
            trainer=self,
            algorithm=algorithm,
            **datasets,
            initial_resources=self.initial_resources,
            rollout_config=self.rollout_config,
            adapter=self.adapter,
            store=store,
            strategy=self.strategy,
            runners=self.runners_side(agent, hooks),
            hooks=hooks,
            first=first,
            proxy=proxy,
            budget=None if limits is None and elsewhere is None else BudgetOfRun(limits, elsewhere=elsewhere),
            recording=self.recording,
            display=display,
            name=name,
        )

    def _fit(self, agent: object, algorithm: Algorithm | None, datasets: "_Datasets") -> FitResult:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise LightningError("fit was called in a running event loop; use: await trainer.fit_async(...)")
        with self._new_run(agent, algorithm, datasets) as run, event_loop() as loop:
            try:
                loop.run(run.execute())
            except KeyboardInterrupt:
                # After a second Ctrl-C the tasks are still there: none of them may begin to do anything.
                for task in asyncio.all_tasks(loop.get_loop()):
                    task.cancel()
                loop.run(run.interrupted())
        return cast("FitResult", run.result)

    @contextmanager
    def _new_run(self, agent: object, algorithm: Algorithm | None, datasets: "_Datasets") -> Iterator[Run]:
        """Make a run, which has the trainer to itself during the block: its parts have one store and one reporter."""
        if algorithm is None and not leads(self.strategy):
            algorithm = Baseline()  # it is not called here
        with self._lock:
            if self._is_running:
                raise LightningError("this trainer runs already; make another Trainer for a run beside it")
            self._is_running = True
        try:
            run = self._next_run(agent, algorithm, datasets)
            try:
                yield run
            finally:
                self.result = run.result
        finally:
            if self.recording is not None:
                self.recording.close()
            self._is_running = False

    def _check_runner(self) -> None:
        """Make a runner, so that a wrong one is known before a run starts."""
        runner = self.runner
        count = self.n_runners * int(getattr(self.strategy, "concurrency", 1))
        if count != 1 and self.make_runner() is runner:
            raise InvalidComponent(
                f"runner is one instance of {type(runner).__name__}, but there are {count} runners; "
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

    def _build(self, kind: Kind, spec: object, expected: type[T], defaults: Mapping[str, Any] | None = None) -> T:
        unnamed = "triplet" if kind == "adapters" else None
        return default_registry().build(kind, spec, expected=expected, defaults=defaults or {}, unnamed=unnamed)


@functools.cache
def _late_defaults() -> "tuple[type[OtelTracer], type[TracerTraceToTriplet]]":
    """Import what takes time and memory: the OpenTelemetry SDK, and what reads its spans."""
    from lightning_core.adapter.triplet import TracerTraceToTriplet
    from lightning_core.tracer.otel import OtelTracer

    return OtelTracer, TracerTraceToTriplet


def _strategy_form(strategy: object, port: int | None) -> object:
    """Return the strategy that is meant: a port, or options without a name, are those of one that serves the store."""
    if strategy is None and port is not None:
        return "processes"
    if isinstance(strategy, Mapping) and not {"name", "type"} & strategy.keys():
        return {"name": "processes", **strategy}
    return strategy


def is_watched() -> bool:
    """Whether somebody sees what is shown: stderr is a terminal, or this runs in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") or (sys.stderr is not None and sys.stderr.isatty())


def _check_resources(resources: Mapping[str, Any] | None) -> None:
    """Refuse a broken prompt before it fails once for each sample, or is improved on."""
    for name, resource in (resources or {}).items():
        if not isinstance(resource, Resource):
            raise ConfigError(f"initial_resources: {name} is not a resource, such as PromptTemplate(template=...)")
        if isinstance(resource, PromptTemplate):
            try:
                resource.placeholders()
            except ValueError as exc:
                raise ConfigError(f"initial_resources: {name}: {exc}") from exc


def _check_dataset(name: str, dataset: object) -> None:
    is_sequence = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if dataset is not None and (not is_sequence or isinstance(dataset, str | bytes | Mapping)):
        raise InvalidComponent(
            f"{name} is of type {type(dataset).__name__}; a dataset has a length and is read by index, as a list is"
        )
