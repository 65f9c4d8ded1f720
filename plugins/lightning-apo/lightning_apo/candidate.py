"""Prompts in competition: what each of them scored, and which is better."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightning_core.algorithm.estimates import (
    Estimate,
    PairedDifference,
    estimate,
    paired_difference,
)
from lightning_core.types import PromptTemplate

Texts = Mapping[str, str]
"""Prompt name -> template, of all prompts that are tuned, always in the same order."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A prompt that was tried, or is about to be; several where a bundle has several."""

    texts: Texts
    resources_id: str
    """Where the store has the bundle with them that the agent is given."""
    number: int = -1
    """Counts the candidates in the order in which they were found, from 0, the first prompt; -1 until it is known."""
    round_number: int = 0
    """The round in which it was found, from 1; 0 for the first prompt."""
    parent: int | None = None
    """The number of the candidate that it is an edit of."""
    rewards: dict[int, float | None] = field(default_factory=dict)
    """Validation sample -> reward, None for a sample that was lost."""

    @property
    def score(self) -> Estimate | None:
        """The mean over all validation samples that it was tried on; None when none gave a reward."""
        return estimate(self.rewards.values())

    @property
    def is_scored(self) -> bool:
        """Whether any validation sample gave a reward."""
        return any(reward is not None for reward in self.rewards.values())

    def on(self, samples: Iterable[int]) -> list[float | None]:
        """Return the rewards on these samples, in their order."""
        return [self.rewards.get(sample) for sample in samples]


def compare(candidate: Candidate, reference: Candidate) -> PairedDifference | None:
    """Say how much better a candidate is than another, on the samples that gave both a reward; None when none did.

    A sample that one of them was not tried on is not lost.
    """
    samples = sorted(candidate.rewards.keys() & reference.rewards.keys())
    return paired_difference(reference.on(samples), candidate.on(samples))


SHRINKAGE = 8
"""An advantage counts as if a candidate had been like the others on this many more samples. So a prompt that was tried
twice, and was lucky, does not pass one that was tried often. Chosen with `benchmarks/landscapes.py`."""


def best_first(candidates: Iterable[Candidate], among: Iterable[Candidate]) -> list[Candidate]:
    """Sort candidates by their advantage: how much better they were than all others, sample by sample.

    The advantage on one sample is the reward less the mean reward of all candidates that were tried on it. So hard
    samples count against no candidate. The sum is divided by the number of samples and `SHRINKAGE`. Samples that gave a
    reward to one candidate alone say nothing, and are left out.

    One that lost more than half of its samples ranks behind the others, as little is known of it. Where two are equal,
    the older one comes first. Those without a reward are left out.

    Args:
        candidates: Those to sort.
        among: All that there are.
    """
    on_sample: dict[int, list[float]] = {}
    for candidate in among:
        for sample, reward in candidate.rewards.items():
            if reward is not None:
                on_sample.setdefault(sample, []).append(reward)
    usual = {sample: math.fsum(rewards) / len(rewards) for sample, rewards in on_sample.items() if len(rewards) > 1}
    largest = max((abs(reward) for rewards in on_sample.values() for reward in rewards), default=0.0) or 1.0

    def place(candidate: Candidate) -> tuple[bool, float, int]:
        lost = sum(reward is None for reward in candidate.rewards.values())
        gains = [
            (reward - usual[sample]) / largest
            for sample, reward in candidate.rewards.items()
            if reward is not None and sample in usual
        ]
        # What is closer than this differs by rounding alone.
        advantage = round(math.fsum(gains) / (len(gains) + SHRINKAGE), 9)
        return 2 * lost > len(candidate.rewards), -advantage, candidate.number

    return sorted((candidate for candidate in candidates if candidate.is_scored), key=place)


def proves_gain(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    """Whether the 95% interval of the gain lies above zero, whatever the lost samples would have been.

    A sample that was lost after counts there as the lowest reward, one that was lost before as the highest: 0 and 1, or
    what is beyond among the rewards.
    """
    known = [reward for reward in (*before, *after) if reward is not None]
    lowest, highest = min(known, default=0.0), max(known, default=1.0)
    difference = paired_difference(
        [max(1.0, highest) if reward is None else reward for reward in before],
        [min(0.0, lowest) if reward is None else reward for reward in after],
    )
    return difference is not None and difference.is_gain


MEASURED = (
    "val_reward",
    "val_samples",
    "val_reward_low",
    "val_reward_high",
    "val_reward_initial",
    "val_gain",
    "val_gain_low",
    "val_gain_high",
)
"""The metrics that a result may lack: not measured yet, or true of an earlier best prompt only."""


@dataclass(frozen=True, slots=True)
class Result:
    """The state of a search, or its result. Its text is one line for a person."""

    best_prompts: Mapping[str, PromptTemplate]
    """The best prompt under each name."""
    score: Estimate | None
    """Its mean reward on validation samples; None before anything was measured. It is of the samples of `gain`, where
    there is one. Else they chose the prompt, and there is an interval only where that is the first."""
    gain: PairedDifference | None
    """What it gained over the first prompt, sample by sample; None when it is the first, or that was not measured. With
    `apo` it is measured at the end, on samples that chose nothing. With `gepa` these chose, and it has no interval."""
    rejections: Mapping[str, int]
    """Why edits were rejected before they were tried -> how many."""
    counts: Mapping[str, int]
    """How often what happened; see `APO`."""
    history: Sequence[Candidate]
    """All candidates that were tried, in the order in which they were found."""
    is_proven: bool = False
    """Whether the gain is beyond chance: its 95% interval lies above zero, even if the best prompt would have failed
    on each sample that it lost."""

    def __str__(self) -> str:
        if self.gain is not None:
            return str(self.gain)
        if self.score is not None:
            return str(self.score)
        return "not measured yet"

    @property
    def metrics(self) -> dict[str, float]:
        """What `APO` reports."""
        figures: dict[str, float | None] = {}
        if self.score is not None:
            figures |= {"val_reward": self.score.mean, "val_samples": self.score.n}
            figures |= {"val_reward_low": self.score.low, "val_reward_high": self.score.high}
        if self.gain is not None:
            figures |= {"val_reward_initial": self.gain.before, "val_gain": self.gain.difference}
            figures |= {"val_gain_low": self.gain.low, "val_gain_high": self.gain.high}
        return {**{name: value for name, value in figures.items() if value is not None}, **self.counts}
