"""Answers that are given with a label: what a grader is tried on, to learn how well it agrees with people."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from lightning_core.agent.decorators import rollout
from lightning_core.agent.graders import Grader, GraderSpec
from lightning_core.errors import InvalidComponent
from lightning_core.types import AttemptedRollout, NamedResources, Span

TASK: Final = "task"
"""The field of a labelled sample with what the agent was asked."""
RESULT: Final = "result"
"""The field with what the agent returned."""
LABEL: Final = "label"
"""The field with the reward that a person gives for it: a number."""


@rollout
async def given_result(task: dict[str, Any]) -> Any:
    """Return the result that a labelled sample has."""
    return task[RESULT]


class OnLabelled(Grader):
    """Scores the results of labelled samples with another grader, which does not see the labels.

    Args:
        of: The other grader, in any form that `Grader.of` takes.

    Raises:
        RegistryError: When there is no such grader, or it does not take its options.
        ValueError: When the other grader refuses the value of an option.
    """

    def __init__(self, of: GraderSpec) -> None:
        grader = Grader.of(of)
        if grader is None:
            raise InvalidComponent("there is no grader to be tried on labelled samples; name one")
        self._grader = grader

    @property
    def name(self) -> str:
        """What the other grader is called in messages."""
        return self._grader.name

    def is_async(self) -> bool:
        """Whether the other grader's function is a coroutine function."""
        return self._grader.is_async()

    def bind(
        self, *, result: Any, spans: Sequence[Span], rollout: AttemptedRollout, resources: NamedResources
    ) -> Callable[[], Any]:
        """Return the other grader's function with its arguments; the task is that of the sample."""
        unlabelled = rollout.model_copy(update={"input": rollout.input[TASK]})
        return self._grader.bind(result=result, spans=spans, rollout=unlabelled, resources=resources)
