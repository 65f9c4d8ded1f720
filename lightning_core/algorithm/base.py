"""The interface of an algorithm: what tunes the resources."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from lightning_core.agent.base import AttachedToTrainer
from lightning_core.budget import Budget
from lightning_core.errors import AlgorithmNotAttached
from lightning_core.model_proxy import ModelProxy
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, RolloutConfig

if TYPE_CHECKING:
    from lightning_core.adapter.base import TraceAdapter


class Conclusion(BaseModel):
    """What an algorithm has come to, beside its metrics: shown at the end of its run, and kept with it."""

    model_config = ConfigDict(frozen=True)

    name: str
    """What it is, in a word."""
    summary: str
    """It, in a line."""
    text: str
    """It, for people."""
    record: dict[str, Any] | None = None
    """It, as an event for programs, which is called by the name; None where the metrics say it all."""
    exit_status: int = 0
    """That of the command that has run it."""


class Reporter(Protocol):
    """Where an algorithm's reports go."""

    def __call__(
        self,
        metrics: Mapping[str, float | None],
        *,
        step: int | None = None,
        best_resources: NamedResources | None = None,
    ) -> None:
        """Take a report; see `Algorithm.report`."""
        ...


class Algorithm(AttachedToTrainer, ABC):
    """Improves resources: enqueues rollouts, learns from their spans, adds new resources to the store.

    A subclass implements `run`, as a coroutine or as a plain method; a plain one runs in a thread of its own. The
    trainer attaches the store, the initial resources and itself before it calls `run`.
    """

    measures_held_out: ClassVar[bool] = False
    """Whether `run` measures on the held-out samples itself; see `get_test_dataset`."""
    reads_older_steps: ClassVar[bool] = False
    """Whether it reads what was said in the rollouts of all steps when it is resumed; `keep_spans` is then refused."""
    end_seconds: ClassVar[float] = 5.0
    """How long `run` may take to end when the budget is used up: a coroutine is cancelled and may save what it has
    come to, a plain method finds out by itself. What takes longer is left behind."""

    _store: LightningStore | None = None
    _adapter: "TraceAdapter[Any] | None" = None
    _initial_resources: NamedResources | None = None
    _rollout_config: RolloutConfig | None = None
    _reporter: Reporter | None = None
    _llm_proxy: ModelProxy | None = None
    _budget: Budget | None = None
    _test_dataset: Dataset[Any] | None = None
    _not_attached = AlgorithmNotAttached

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """`APO[MyTask]` is `APO`, for scripts of 0.3: what the samples are is not known here."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `run`."""
        return self.run(*args, **kwargs)

    @abstractmethod
    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Tune the resources, and report the best.

        Args:
            train_dataset: The samples to learn from.
            val_dataset: The samples to choose by.

        Raises:
            Exception: Whatever makes it impossible to go on; it ends the run, and `Trainer.fit` raises it.
        """

    def conclude(self) -> Conclusion | None:
        """Return what it has come to, when `run` has ended; None where the metrics and the best resources are all."""
        return None

    def check_access(self) -> None:
        """Check, before a run and without a call, that what `run` needs besides its inputs is there, such as a key.

        Raises:
            AlgorithmError: When it is not; says what to set.
        """

    def is_async(self) -> bool:
        """Whether `run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def report(
        self,
        metrics: Mapping[str, float | None],
        *,
        step: int | None = None,
        best_resources: NamedResources | None = None,
    ) -> None:
        """Say how it stands. May be called from any thread.

        The result of `Trainer.fit` has the newest value of each metric and the newest best resources, also when the
        run is interrupted later. Outside of a trainer a report goes nowhere.

        Args:
            metrics: What was measured, by name. A metric that is not in it keeps its value; None takes its value away.
            step: Which step has ended, from 1; None when none has.
            best_resources: The best resources so far; None when they are the same as before.
        """
        reporter = self._reporter  # may be taken away by another thread at any moment
        if reporter is not None:
            reporter(metrics, step=step, best_resources=best_resources)

    def set_reporter(self, reporter: Reporter | None) -> None:
        """Attach the receiver of the reports."""
        self._reporter = reporter

    def set_store(self, store: LightningStore) -> None:
        """Attach the store."""
        self._store = store

    def get_store(self) -> LightningStore:
        """Return the store.

        Raises:
            AlgorithmNotAttached: When none is attached.
        """
        if self._store is None:
            raise AlgorithmNotAttached(
                f"{type(self).__name__} has no store; run it through a Trainer, or call set_store"
            )
        return self._store

    def set_adapter(self, adapter: "TraceAdapter[Any] | None") -> None:
        """Attach what makes training data of spans."""
        self._adapter = adapter

    def get_adapter(self) -> "TraceAdapter[Any]":
        """Return what makes training data of spans.

        Raises:
            AlgorithmNotAttached: When none is attached.
        """
        if self._adapter is None:
            raise AlgorithmNotAttached(
                f"{type(self).__name__} has no adapter; run it through a Trainer, or call set_adapter"
            )
        return self._adapter

    def set_llm_proxy(self, llm_proxy: ModelProxy | None) -> None:
        """Attach the model proxy; None for none."""
        self._llm_proxy = llm_proxy

    def get_llm_proxy(self) -> ModelProxy | None:
        """Return the model proxy, which runs while `run` does, or None when there is none.

        Calls of the algorithm itself go through it with `own_calls`.
        """
        return self._llm_proxy

    def set_budget(self, budget: Budget | None) -> None:
        """Attach what the run may use; None for no limit."""
        self._budget = budget

    def get_budget(self) -> Budget | None:
        """Return what the run may use, and has used; None where there is no limit.

        When a call was refused because of it, or the time is over, the run ends: `run` is cancelled where it is a
        coroutine function. A plain one looks at `reached` between its steps and returns; after five seconds it is
        left behind.
        """
        return self._budget

    def set_test_dataset(self, dataset: Dataset[Any] | None) -> None:
        """Attach the held-out samples; None for none, and where the trainer measures on them after `run`."""
        self._test_dataset = dataset

    def get_test_dataset(self) -> Dataset[Any] | None:
        """Return the held-out samples of an algorithm that `measures_held_out`; None for any other, or without any.

        It is for one whose resources do not outlive `run`, such as a model that it serves. It measures in `run` what it
        starts from and what it has found, with rollouts of mode `test` and the metrics `test_reward_initial` and
        `test_reward`, and says which resources the two are with `set_initial_resources` and `report`. It learns
        nothing from these samples.
        """
        return self._test_dataset

    def set_rollout_config(self, config: RolloutConfig | None) -> None:
        """Attach the limits and the retry policy of rollouts."""
        self._rollout_config = config

    def get_rollout_config(self) -> RolloutConfig | None:
        """Return the limits and the retry policy to enqueue rollouts with; None for the defaults."""
        return self._rollout_config

    def set_initial_resources(self, resources: NamedResources | None) -> None:
        """Attach the resources to start from."""
        self._initial_resources = resources

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources to start from, or None when there are none."""
        return self._initial_resources


class FastAlgorithm(Algorithm):
    """An algorithm that is done within moments, which `Trainer.dev` takes to try an agent out."""
