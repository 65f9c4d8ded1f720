"""How well two raters agree, and the algorithm that compares a grader with people's labels."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, FiniteFloat, ValidationError

from lightning_core.agent.decorators import rollout
from lightning_core.agent.graders import Grader, GraderSpec
from lightning_core.algorithm.base import Conclusion, FastAlgorithm
from lightning_core.algorithm.batch import continued, store_resources
from lightning_core.algorithm.estimates import CONFIDENCE, number_text, wilson_interval
from lightning_core.errors import InvalidComponent, InvalidInput, first_fault
from lightning_core.texts import shortened
from lightning_core.types import AttemptedRollout, Dataset, NamedResources, Span, samples_of
from lightning_evals.evaluation import require_reward, run_trials

_DECIMALS = 9
"""Values that differ by less are one category: what is between them is the rounding of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well two raters agree. Its text is `0.90 (95% 0.77..0.96, n=40), kappa 0.79`."""

    share: float
    """Of the samples, those on which they say the same."""
    low: float
    """The lower end of the share's confidence interval."""
    high: float
    """The upper end."""
    kappa: float | None
    """Cohen's kappa: the agreement beyond chance, at most 1. None where both always say one and the same."""
    n: int
    """How many samples both rated."""
    lost: int
    """How many one of them did not rate."""

    def __str__(self) -> str:
        lost = f", {self.lost} lost" if self.lost else ""
        ends = f"{CONFIDENCE:.0%} {number_text(self.low)}..{number_text(self.high)}"
        kappa = "unknown: every rating is the same" if self.kappa is None else number_text(self.kappa)
        return f"{number_text(self.share)} ({ends}, n={self.n}{lost}), kappa {kappa}"


def agreement(first: Sequence[float | None], second: Sequence[float | None]) -> Agreement | None:
    """Estimate how often two raters say the same, and how much of that is not chance.

    Each value is a category of its own: two that are close agree no more than two that are not. The share has
    Wilson's interval. Kappa is Cohen's (1960, Educational and Psychological Measurement 20:37-46), unweighted.

    Args:
        first: What one rater says of each sample; None where it says nothing.
        second: What the other one says of the same samples, in the same order.

    Returns:
        The agreement; None when no sample has both ratings.

    Raises:
        ValueError: When there are not as many ratings of both.
    """
    pairs = [
        (round(one, _DECIMALS), round(other, _DECIMALS))
        for one, other in zip(first, second, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    n = len(pairs)
    agreed = sum(one == other for one, other in pairs)
    low, high = wilson_interval(agreed, n)
    return Agreement(agreed / n, low, high, _kappa(pairs), n=n, lost=len(first) - n)


def _kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return kappa; None where chance alone agrees always."""
    n = len(pairs)
    rows, columns = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    by_chance = sum(count * columns[value] for value, count in rows.items()) / n**2
    if by_chance == 1:
        return None
    observed = sum(one == other for one, other in pairs) / n
    return (observed - by_chance) / (1 - by_chance)


_MAX_SHOWN = 10
"""How many disagreements are shown."""


@rollout
async def given_result(task: dict[str, Any]) -> Any:
    """Return the result that a labelled sample has."""
    return task["result"]


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
        unlabelled = rollout.model_copy(update={"input": rollout.input["task"]})
        return self._grader.bind(result=result, spans=spans, rollout=unlabelled, resources=resources)


class LabelAgreement(FastAlgorithm):
    """Has the grader score each labelled sample of the training samples once, and reports how well it agrees.

    The metrics are `agreement` (a share), with `_low` and `_high`, and `kappa`.
    """

    def __init__(self) -> None:
        self.agreement: Agreement | None = None
        """How well the grader agrees with the labels; None before the end."""
        self.disagreements: list[str] = []
        """Where it does not, a line each."""

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Compare the grader with the labels.

        Raises:
            InvalidInput: When there is no sample, or one is not labelled.
            NoRewards: When no sample was scored.
        """
        samples = [] if train_dataset is None else samples_of(train_dataset)
        labels = [_label_of(number, sample) for number, sample in enumerate(samples, start=1)]
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
            f"{trial.rollout_id}: label {label:g}, judged {trial.reward:g}: {shortened(sample['task'], 80)}"
            for trial, sample, label in zip(trials, samples, labels, strict=True)
            if trial.reward is not None and not math.isclose(trial.reward, label, abs_tol=1e-9)
        ]
        metrics = {
            "agreement": found.share,
            "agreement_low": found.low,
            "agreement_high": found.high,
            "kappa": found.kappa,
        }
        self.report({name: value for name, value in metrics.items() if value is not None})

    def conclude(self) -> Conclusion | None:
        """Return how well the grader agrees, and where it does not; None before the end."""
        if self.agreement is None:
            return None
        lines = [f"agreement with the labels: {self.agreement}"]
        lines += [f"  {line}" for line in self.disagreements[:_MAX_SHOWN]]
        if len(self.disagreements) > _MAX_SHOWN:
            lines.append(f"  and {len(self.disagreements) - _MAX_SHOWN} more")
        return Conclusion(name="agreement", summary=str(self.agreement), text="\n".join(lines))


class _Labelled(BaseModel):
    """A labelled sample."""

    task: Any
    result: Any
    """What the agent returned."""
    label: FiniteFloat
    """The reward that a person gives for it."""


def _label_of(number: int, sample: Any) -> float:
    try:
        return _Labelled.model_validate(sample, strict=True).label
    except ValidationError as exc:
        raise InvalidInput(
            f"labelled sample {number}: {first_fault(exc)}; a labelled sample is a mapping with task, result and "
            "label, which is a number, such as 0 or 1"
        ) from exc
