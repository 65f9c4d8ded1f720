"""The trainer that an agent or an algorithm is attached to."""

import weakref
from typing import TYPE_CHECKING, ClassVar

from lightning_core.errors import LightningError

if TYPE_CHECKING:
    from lightning_core.trainer import Trainer


class AttachedToTrainer:
    """Knows its trainer, and does not keep it alive."""

    _trainer: "weakref.ReferenceType[Trainer] | None" = None
    _not_attached: ClassVar[type[LightningError]]
    """What is raised without a trainer."""

    def set_trainer(self, trainer: "Trainer") -> None:
        """Attach the trainer, which is not kept alive by it."""
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> "Trainer":
        """Return the trainer.

        Raises:
            AgentNotAttached: An agent has none, or it is gone.
            AlgorithmNotAttached: An algorithm has none, or it is gone.
        """
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            raise self._not_attached(f"{type(self).__name__} has no trainer; run it through Trainer.fit")
        return trainer
