"""Prompts in competition: what each of them scored, and which is better."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightning_core.algorithm.estimates import Estimate, PairedDifference, estimate, paired_difference
from lightning_core.types import NamedResources, PromptTemplate

Texts = Mapping[str, str]
"""Prompt name -> template, of all prompts that are tuned, always in the same order."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A prompt that was tried, or is about to be; several where a bundle has several."""

    texts: Texts
    resources: NamedResources
    """The whole bundle that the agent is given."""
    resources_id: str
    """Where the store has it."""
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


def best_first(candidates: Iterable[Candidate], samples: Sequence[int]) -> list[Candidate]:
    """Sort candidates by what they gained over one and the same other one, on the same samples.

    That other one is the candidate that gave most rewards, so a candidate gets nothing from losing the samples that
    are hard for all candidates. One that lost more than half of the samples ranks behind the others, as little is known
    of it. Where two are equal, the older one comes first. Those without a reward are left out.

    Args:
        candidates: All of them tried on the samples.
        samples: What to compare them on.
    """
    rewards = {candidate: candidate.on(samples) for candidate in candidates}
    given = {candidate: sum(reward is not None for reward in each) for candidate, each in rewards.items()}
    alive = [candidate for candidate in rewards if given[candidate]]
    if not alive:
        return []
    reference = min(alive, key=lambda candidate: (-given[candidate], candidate.number))

    def place(candidate: Candidate) -> tuple[bool, bool, float, int]:
        is_doubtful = 2 * given[candidate] < len(samples)
        difference = paired_difference(rewards[reference], rewards[candidate])
        if difference is None:  # they share no sample, so it cannot be compared
            score = estimate(rewards[candidate])
            assert score is not None  # it is alive
            return is_doubtful, True, -score.mean, candidate.number
        return is_doubtful, False, -difference.difference, candidate.number

    return sorted(alive, key=place)


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
    """Its mean reward on validation samples, with its interval; None before anything was measured. The best of many
    on these samples looks better than it is: only held-out samples tell how good."""
    gain: PairedDifference | None
    """What it gained over the first prompt, sample by sample; None when it is the first, or that was not measured."""
    rejections: Mapping[str, int]
    """Why edits were rejected before they were tried -> how many."""
    counts: Mapping[str, int]
    """How often what happened; see `APO`."""
    history: Sequence[Candidate]
    """All candidates that were tried, in the order in which they were found."""

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
