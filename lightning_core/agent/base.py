"""The interface of an agent."""

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lightning_core.errors import AgentError, InvalidAgent
from lightning_core.types import NamedResources, Rollout, RolloutMode

if TYPE_CHECKING:
    from lightning_core.trainer import Trainer

T = TypeVar("T")


class LitAgent(Generic[T]):
    """A program that does a task with the resources that it is given.

    A subclass implements `rollout`, or `rollout_async`; or one of the `training_` and `validation_` variants where
    the two differ. One agent serves many rollouts at the same time: what belongs to a rollout stays in its call.

    All of them return one of

    - None: the reward was emitted (`emit_reward`), or there is none;
    - a number: the reward;
    - a dict of numbers: named rewards, the first of which is the primary one;
    - a list of spans (`ReadableSpan`, `Span` or `SpanCoreFields`), which are recorded.

    A sync method runs in a thread of its own. What it raises fails the attempt.
    """

    _trainer: "weakref.ReferenceType[Trainer] | None" = None

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
        """Do a task of a rollout whose mode is `train`, or that has none."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `val` or `test`."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `train`, or that has none."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Do a task of a rollout whose mode is `val` or `test`."""
        return await self.rollout_async(task, resources, rollout)

    def method_for(self, mode: RolloutMode | None) -> Any:
        """Return the method that does a rollout of this mode."""
        kind = "validation" if mode in ("val", "test") else "training"
        return getattr(self, f"{kind}_rollout_async" if self.is_async() else f"{kind}_rollout")

    def set_trainer(self, trainer: "Trainer") -> None:
        """Attach the trainer, which is not kept alive by it."""
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> "Trainer":
        """Return the trainer.

        Raises:
            AgentError: When none is attached, or it is gone.
        """
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            raise AgentError(f"{type(self).__name__} has no trainer; run it through Trainer.fit")
        return trainer

    @property
    def trainer(self) -> "Trainer":
        """The trainer; see `get_trainer`."""
        return self.get_trainer()
