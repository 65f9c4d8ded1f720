"""How well a grader agrees with people: the algorithm that compares it with their labels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_core.agent.decorators import rollout
from lightning_core.agent.graders import Grader, GraderSpec
from lightning_core.algorithm.base import Conclusion, FastAlgorithm
from lightning_core.algorithm.batch import continued, store_resources
from lightning_core.errors import InvalidComponent, InvalidInput
from lightning_core.texts import shortened
from lightning_core.types import AttemptedRollout, Dataset, NamedResources, Span, samples_of
from lightning_evals.agreement import Agreement, agreement
from lightning_evals.evaluation import require_reward, run_trials

TASK: Final = "task"
"""The field of a labelled sample with what the agent was asked."""
RESULT: Final = "result"
"""The field with what the agent returned."""
LABEL: Final = "label"
"""The field with the reward that a person gives for it: a number."""

_MAX_SHOWN = 10
"""How many disagreements are shown."""


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


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A sample that the grader scores otherwise than its label says."""

    rollout_id: str
    task: Any
    label: float
    reward: float


class LabelAgreement(FastAlgorithm):
    """Has the grader score each labelled sample of the training samples once, and reports how well it agrees.

    The metrics are `agreement` (a share) and `kappa`, each with `_low` and `_high` where there is an interval.
    """

    def __init__(self) -> None:
        self.agreement: Agreement | None = None
        """How well the grader agrees with the labels; None before the end."""
        self.disagreements: list[Disagreement] = []
        """Where it does not."""

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Compare the grader with the labels.

        Raises:
            InvalidInput: When there is no sample, or one is not labelled.
            NoRewards: When no sample was scored.
        """
        samples = [] if train_dataset is None else samples_of(train_dataset)
        labels = [_label(number, sample) for number, sample in enumerate(samples, start=1)]
        async with continued(self.get_store(), "labels", of=len(samples)) as key:
            trials = await run_trials(
                self.get_store(),
                samples,
                resources_id=await store_resources(self.get_store(), self.get_initial_resources(), key=key),
                config=self.get_rollout_config(),
                request_id=f"{key}/labels",
                mode="val",
            )
        require_reward(trials, step="the labelled samples")
        found = self.agreement = agreement([trial.reward for trial in trials], labels)
        assert found is not None
        self.disagreements = [
            Disagreement(trial.rollout_id, sample[TASK], label, trial.reward)
            for trial, sample, label in zip(trials, samples, labels, strict=True)
            if trial.reward is not None and not math.isclose(trial.reward, label, abs_tol=1e-9)
        ]
        metrics = {
            "agreement": found.share,
            "agreement_low": found.low,
            "agreement_high": found.high,
            "kappa": found.kappa,
            "kappa_low": found.kappa_low,
            "kappa_high": found.kappa_high,
        }
        self.report({name: value for name, value in metrics.items() if value is not None})

    def conclude(self) -> Conclusion | None:
        """Return how well the grader agrees, and where it does not; None before the end."""
        if self.agreement is None:
            return None
        lines = [f"agreement with the labels: {self.agreement}"]
        lines += [
            f"  {each.rollout_id}: label {each.label:g}, judged {each.reward:g}: {shortened(each.task, 80)}"
            for each in self.disagreements[:_MAX_SHOWN]
        ]
        if len(self.disagreements) > _MAX_SHOWN:
            lines.append(f"  and {len(self.disagreements) - _MAX_SHOWN} more")
        return Conclusion(name="agreement", summary=str(self.agreement), text="\n".join(lines))


def _label(number: int, sample: Any) -> float:
    wanted = f"a labelled sample is a mapping with {TASK}, {RESULT} and {LABEL}"
    if not isinstance(sample, dict):
        raise InvalidInput(f"labelled sample {number} is a {type(sample).__name__}; {wanted}")
    if missing := [name for name in (TASK, RESULT, LABEL) if name not in sample]:
        raise InvalidInput(f"labelled sample {number} has no {', '.join(map(repr, missing))}; {wanted}")
    label = sample[LABEL]
    if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
        raise InvalidInput(f"labelled sample {number} has the label {label!r}; a label is a number, such as 0 or 1")
    return float(label)
