"""The interface of an agent."""

import weakref
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, TypeVar

from lightning_core.agent.functions import refuse_generator
from lightning_core.deprecated import deprecated
from lightning_core.errors import AgentNotAttached, InvalidAgent, LightningError
from lightning_core.tracer import Tracer
from lightning_core.types import NamedResources, Rollout, RolloutMode


class AttachedToTrainer:
    """Knows its trainer, and does not keep it alive."""

    _trainer: "weakref.ReferenceType[Any] | None" = None
    _not_attached: ClassVar[type[LightningError]]
    """What is raised without a trainer."""

    def set_trainer(self, trainer: Any) -> None:
        """Attach the trainer, which is not kept alive by it."""
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> Any:
        """Return the trainer.

        Raises:
            AgentNotAttached: An agent has none, or it is gone.
            AlgorithmNotAttached: An algorithm has none, or it is gone.
        """
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            raise self._not_attached(
                f"{type(self).__name__} has no trainer; run it through Trainer.fit, whose runners in processes of "
                "their own have none"
            )
        return trainer


T = TypeVar("T")

current_runner: ContextVar[Any] = ContextVar("lightning_current_runner", default=None)
"""The runner that runs a rollout in this context: of this task or thread, and of those started from it."""


class LitAgent(AttachedToTrainer, Generic[T]):
    """A program that does a task with the resources that it is given.

    A subclass implements `rollout`, or `rollout_async`; or one of the `training_` and `validation_` variants where
    the two differ. One agent serves many rollouts at the same time: what belongs to a rollout stays in its call.

    All of them return one of

    - None: the reward was emitted (`emit_reward`), or there is none;
    - a number: the reward;
    - a dict of numbers: named rewards, the first of which is the primary one;
    - a list of spans (`ReadableSpan`, `Span` or `SpanCoreFields`), which are recorded.

    Where a grader scores it (`Trainer(reward=...)`), it returns whatever the grader is to see. A sync method runs in
    a thread of its own. What it raises fails the attempt; a `Fault` says that something else than the agent failed.

    A subclass need not call `super().__init__()`.
    """

    runs_elsewhere: ClassVar[bool] = False
    """Whether it only starts or asks what does the task, such as a program or a service: then nothing of what that does
    can be seen or stopped in this process, but that it ends."""

    _not_attached = AgentNotAttached
    _runner: "weakref.ReferenceType[Any] | None" = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for mode in ("", "training_", "validation_"):
            for name in (f"{mode}rollout", f"{mode}rollout_async"):
                refuse_generator(getattr(cls, name), f"{cls.__name__}.{name}")

    @deprecated(without_effect={"trained_agents": "the adapter says which agents are trained, by its agent_match="})
    def __init__(self) -> None:
        super().__init__()

    def is_async(self) -> bool:
        """Whether the coroutine methods are to be called: whether one of them is overridden."""
        return any(
            getattr(type(self), name) is not getattr(LitAgent, name)
            for name in ("rollout_async", "training_rollout_async", "validation_rollout_async")
        )

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task.

        Args:
            task: The rollout's input.
            resources: The bundle of the rollout's resources version.
            rollout: The rollout, with its attempt.
        """
        raise InvalidAgent(f"{type(self).__name__} has to implement rollout or rollout_async")

    async def rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task; see `rollout`."""
        raise InvalidAgent(f"{type(self).__name__} has to implement rollout_async")

    def training_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `train`."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `val` or `test`, or that has none."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `train`."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `val` or `test`, or that has none."""
        return await self.rollout_async(task, resources, rollout)

    def method_for(self, mode: RolloutMode | None) -> Any:
        """Return the method that does a rollout of this mode.

        A rollout without a mode is not training data.
        """
        kind = "training" if mode == "train" else "validation"
        return getattr(self, f"{kind}_rollout_async" if self.is_async() else f"{kind}_rollout")

    @property
    def trainer(self) -> Any:
        """The trainer; see `get_trainer`."""
        return self.get_trainer()

    def set_runner(self, runner: Any) -> None:
        """Attach the runner that `get_runner` returns outside of rollouts, which is not kept alive by it."""
        self._runner = weakref.ref(runner)

    def get_runner(self) -> Any:
        """Return the runner of the rollout that runs in the calling context; outside of one, the attached runner.

        An agent serves many runners at once; each rollout sees its own, in the tasks and threads that it starts too.

        Raises:
            AgentNotAttached: Outside of a rollout, when no runner is attached or it is gone.
        """
        runner = current_runner.get() or (None if self._runner is None else self._runner())
        if runner is None:
            raise AgentNotAttached(
                f"{type(self).__name__} has no runner here; only a rollout that is being run has one"
            )
        return runner

    @property
    def runner(self) -> Any:
        """The runner; see `get_runner`."""
        return self.get_runner()

    def get_tracer(self) -> Tracer:
        """Return the tracer that records the rollout of the calling context; outside of one, the trainer's.

        Raises:
            AgentNotAttached: Outside of a rollout, when there is no trainer either.
        """
        from lightning_core.tracer import get_active_tracer  # late: it takes the OpenTelemetry SDK with it

        return get_active_tracer() or self.get_trainer().tracer

    @property
    def tracer(self) -> Tracer:
        """The tracer; see `get_tracer`."""
        return self.get_tracer()
