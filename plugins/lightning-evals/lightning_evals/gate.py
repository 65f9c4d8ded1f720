"""The algorithm that shows that an agent is not worse than it was, with as few rollouts as that takes."""

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from lightning_core.algorithm.base import Conclusion
from lightning_core.algorithm.batch import continued
from lightning_core.algorithm.estimates import number_text
from lightning_core.errors import InvalidInput, RunFolderError
from lightning_core.texts import cut
from lightning_core.types import Dataset, RolloutMode, samples_of
from lightning_evals.evaluation import (
    Evaluate,
    Evaluation,
    SampleTrials,
    Trial,
    key_of,
    require_reward,
    summarise,
)
from lightning_evals.sequential import anytime_bounds

Outcome = Literal["passed", "worse", "undecided"]
"""`passed`: the reward drops by less than the margin. `worse`: it drops by more. Both at the stated confidence."""

_EXIT_STATUS: Final[dict[Outcome, int]] = {"passed": 0, "worse": 1, "undecided": 4}

_LOOKS = 20
_MIN_LOOK = 10
_PER_MARGIN = 5
"""The lower bound of n samples that do not change lies so much / n of the range below 0: 4.7 with 50, 4.9 with 500."""
_MAX_NAMED = 10


class Change(BaseModel):
    """How the mean reward changed, over the samples that have one before and after."""

    model_config = ConfigDict(frozen=True)

    before: float
    after: float
    low: float
    """The lower end of the 95% interval of the change, which holds at every look."""
    high: float

    def __str__(self) -> str:
        before, after = number_text(self.before), number_text(self.after)
        change, low, high = (number_text(each, sign="+") for each in (self.after - self.before, self.low, self.high))
        return f"{before} → {after}, a change of {change} (95% {low} to {high})"


class Regression(BaseModel):
    """A sample that got worse."""

    model_config = ConfigDict(frozen=True)

    task: str
    before: float
    after: float
    failure: str | None
    """Why a rollout of it gave no reward."""


class GateResult(BaseModel):
    """What a gate has found."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    max_drop: float
    baseline: str
    """The run of the baseline."""
    run_id: str
    reward: Change
    n: int
    """How many samples were compared."""
    of: int
    """How many could have been: those of the dataset that the baseline has, too."""
    needed: int
    """About how many it takes to rule out the drop where nothing changes."""
    lost: int
    """Samples that a fault kept from a comparison, in this run."""
    faulted: int = 0
    """Rollouts of which an attempt ended in a fault, in this run, whether another one gave a reward or not."""
    hidden: float = 0.0
    """How large a drop these rollouts could hide."""
    lost_before: int
    """Samples of the dataset that a fault kept from the baseline."""
    not_in_dataset: int
    """Samples of the baseline that the dataset does not have."""
    not_in_baseline: int
    """Samples of the dataset that the baseline does not have."""
    regressions: list[Regression]
    """The samples that dropped the most."""

    @property
    def sentence(self) -> str:
        """What the outcome means."""
        return {
            "passed": f"The reward drops by less than {self.max_drop:g}.",
            "worse": f"The reward drops by more than {self.max_drop:g}.",
            "undecided": f"The samples do not tell whether the reward drops by less than {self.max_drop:g}.",
        }[self.outcome]

    def markdown(self) -> str:
        """Return it as Markdown for a pull request. Texts of tasks are quoted, so that they do nothing there."""
        end = " It ended early." if self.n + self.lost < self.of else ""
        lines = [
            f"### Gate: {self.outcome}",
            "",
            f"{self.sentence} Compared with {_quoted(self.baseline)} on {self.n} of {self.of} samples.{end}",
            "",
            f"Reward: {self.reward}",
        ]
        if self.outcome == "undecided" and self.of < self.needed:
            lines += ["", f"Where nothing changes, it takes about {self.needed} samples to rule out such a drop."]
        hidden = f"{self.faulted} rollouts had faults, which could hide a drop of {number_text(self.hidden)}."
        counted = {
            f"{self.lost} samples were lost to faults.": self.lost,
            hidden: self.hidden,
            f"{self.lost_before} samples were lost to faults in the baseline.": self.lost_before,
            f"{self.not_in_dataset} samples of the baseline are not in the dataset.": self.not_in_dataset,
            f"{self.not_in_baseline} samples of the dataset are not in the baseline.": self.not_in_baseline,
        }
        for sentence, count in counted.items():
            lines += ["", sentence] if count else []
        if self.regressions:
            lines += ["", "Dropped the most:", ""]
            lines += [
                f"- {_quoted(each.task)}: {number_text(each.before)} → {number_text(each.after)}"
                + ("" if each.failure is None else f" ({_quoted(each.failure)})")
                for each in self.regressions
            ]
        return "\n".join(lines) + "\n"


class Gate(Evaluate):
    """Compares the agent with an evaluation of before, sample by sample, until it is clear whether it got worse.

    The samples that both have are run in a random order. After each part of them the mean difference gets bounds that
    hold at every look (see `anytime_bounds`). The gate ends as soon as they lie above `-max_drop`, or below it. A
    rollout in which the agent failed, or that has no reward, counts with the lowest reward; a fault does not count.
    What faults could hide, had each rollout that met one the lowest reward, is taken from the lower bound: one that was
    run again, too, as an agent may raise a fault instead of being wrong, until it is right.

    Args:
        baseline: The file of the evaluation.
        max_drop: The margin: how much smaller the mean reward may be.
        repeat: How often each sample is run.
        low: The lowest reward that there can be.
        high: The highest one.
        mode: What the samples are, as with `Evaluate`.
        markdown: A file for the outcome as Markdown; `manifest.json` of the run's folder has it, too.
    """

    def __init__(
        self,
        baseline: str,
        *,
        max_drop: PositiveFloat = 0.02,
        repeat: PositiveInt = 1,
        low: float = 0.0,
        high: float = 1.0,
        mode: RolloutMode = "test",
        markdown: str | None = None,
    ) -> None:
        super().__init__(repeat=repeat, mode=mode)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low is {low}, and high is {high}; low is the smaller one, and both are finite")
        if not 0 < max_drop < high - low:
            raise ValueError(f"max_drop is {max_drop}; it is more than 0 and less than {high - low:g}")
        self.baseline = baseline
        self.max_drop = max_drop
        self.low = low
        self.high = high
        self.markdown = markdown
        self.result: GateResult | None = None
        """What was found; None before the end."""

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Compare.

        Raises:
            RunFolderError: When the baseline cannot be read, or the outcome not be written.
            InvalidInput: When there is no sample that both have, or a reward is beyond its range.
            NoRewards: When all rollouts of the first samples ended with faults.
        """
        _remove(self.markdown)  # of an earlier gate, which may have passed
        baseline = Evaluation.read(Path(self.baseline))
        before = {sample.key: sample for sample in baseline.samples}
        dataset = train_dataset if val_dataset is None else val_dataset
        given = {key_of(sample): sample for sample in ([] if dataset is None else samples_of(dataset))}
        both = [key for key in given if key in before]
        order = [key for key in both if self._value(before[key]) is not None]
        if not order:
            reason = "none of them has a rollout without a fault" if both else "evaluate the same dataset"
            raise InvalidInput(
                f"the dataset has {len(both) or 'none'} of the {len(before)} samples of the baseline {self.baseline}; "
                f"{reason}"
            )
        random.Random(self.get_store().run_id).shuffle(order)  # the id stays the same when the run goes on
        step = max(_MIN_LOOK, math.ceil(len(order) / _LOOKS))
        found: list[SampleTrials] = []
        bounds = (self.low - self.high, self.high - self.low)
        outcome: Outcome = "undecided"
        async with continued(self.get_store(), "gate", of=[order, self.repeat, self.max_drop]) as key:
            for start in range(0, len(order), step):
                part = [given[each] for each in order[start : start + step]]
                found += await self.try_samples(part, repeat=self.repeat, key=key, part=start)
                if self._lost(found) == len(found):
                    require_reward([trial for sample in found for trial in sample.trials], step="the gate")
                bounds = self._look([(before[each.key], each) for each in found], bounds)
                outcome = self._outcome(bounds, found)
                if outcome != "undecided":
                    break
        self.keep(found)
        pairs = [(before[each.key], each) for each in found]
        self.result = GateResult(
            outcome=outcome,
            max_drop=self.max_drop,
            baseline=baseline.run_id,
            run_id=self.get_store().run_id,
            reward=self._reward(pairs, bounds),
            n=len(self._values(pairs)),
            of=len(order),
            needed=math.ceil(_PER_MARGIN * (self.high - self.low) / self.max_drop),
            lost=self._lost(found),
            faulted=sum(_met_fault(trial) for sample in found for trial in sample.trials),
            hidden=self._hidden(found),
            lost_before=len(both) - len(order),
            not_in_dataset=len(before) - len(both),
            not_in_baseline=len(given) - len(both),
            regressions=self._regressions(pairs),
        )
        self.report(
            {
                **summarise(found, repeat=self.repeat, pass_at=self.pass_at, mode=self.mode),
                "reward_change": self.result.reward.after - self.result.reward.before,
                "reward_change_low": bounds[0],
                "reward_change_high": bounds[1],
            }
        )
        _write(self.markdown, self.result.markdown())

    def conclude(self) -> Conclusion | None:
        """Return the outcome; the exit status is 0 when it passed, 1 when the agent got worse, 4 when neither is clear.

        None before the end.
        """
        result = self.result
        if result is None:
            return None
        return Conclusion(
            name="gate",
            summary=f"{result.outcome}: {result.sentence}",
            text=result.markdown(),
            record=result.model_dump(mode="json"),
            exit_status=_EXIT_STATUS[result.outcome],
        )

    def _look(
        self, pairs: Sequence[tuple[SampleTrials, SampleTrials]], known: tuple[float, float]
    ) -> tuple[float, float]:
        differences = [second - first for first, second in self._values(pairs)]
        span = self.high - self.low
        low, high = anytime_bounds(differences, low=-span, high=span)
        return max(low, known[0]), min(high, known[1])

    def _outcome(self, bounds: tuple[float, float], found: Sequence[SampleTrials]) -> Outcome:
        if bounds[1] < -self.max_drop:
            return "worse"
        # What makes a fault, as a prompt that is too long, may be the change itself.
        hidden = self._hidden(found)
        low = bounds[0] * (1 - hidden / (self.high - self.low) if bounds[0] > 0 else 1) - hidden
        return "passed" if low > -self.max_drop else "undecided"

    def _hidden(self, found: Sequence[SampleTrials]) -> float:
        lost = fmean(fmean(map(_met_fault, sample.trials)) for sample in found)
        return lost * (self.high - self.low)

    def _lost(self, found: Iterable[SampleTrials]) -> int:
        return sum(self._value(each) is None for each in found)

    def _values(self, pairs: Iterable[tuple[SampleTrials, SampleTrials]]) -> list[tuple[float, float]]:
        both = [(self._value(first), self._value(second)) for first, second in pairs]
        return [(first, second) for first, second in both if first is not None and second is not None]

    def _value(self, sample: SampleTrials) -> float | None:
        """Return the mean of the trials that say something of the agent; None when none does."""
        rewards = [self.low if each.reward is None else each.reward for each in sample.trials if not each.is_fault]
        for reward in rewards:
            if not self.low <= reward <= self.high:
                raise InvalidInput(
                    f"a reward of {sample.task!r} is {reward:g}, which is not from {self.low:g} to {self.high:g}; "
                    "say what rewards there can be, with --range LOW HIGH, or from Python with low and high"
                )
        return sum(rewards) / len(rewards) if rewards else None

    def _reward(self, pairs: Sequence[tuple[SampleTrials, SampleTrials]], bounds: tuple[float, float]) -> Change:
        before, after = (fmean(column) for column in zip(*self._values(pairs), strict=True))
        return Change(before=before, after=after, low=bounds[0], high=bounds[1])

    def _regressions(self, pairs: Iterable[tuple[SampleTrials, SampleTrials]]) -> list[Regression]:
        dropped = []
        for first, second in pairs:
            before, after = self._value(first), self._value(second)
            if before is not None and after is not None and after < before:
                failure = next((each.failure for each in second.trials if each.failure is not None), None)
                dropped.append(Regression(task=second.task, before=before, after=after, failure=failure))
        return sorted(dropped, key=lambda each: each.after - each.before)[:_MAX_NAMED]


def _met_fault(trial: Trial) -> bool:
    return trial.is_fault or trial.faults > 0


def _remove(file: str | None) -> None:
    if file is not None:
        Path(file).unlink(missing_ok=True)


def _write(file: str | None, text: str) -> None:
    """Write a file that others read, such as the next step of a workflow: it is not private, as those of a run are."""
    if file is not None:
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as exc:
            raise RunFolderError(f"cannot write the outcome of the gate to {file}: {exc.strerror}") from exc


def _quoted(text: str) -> str:
    line = "".join(each for each in " ".join(text.replace("`", "'").split()) if each.isprintable())
    return f"`{cut(line, 120)}`"
