"""Prompts in competition: what each of them scored, and which is better."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from lightning_core.types import NamedResources, PromptTemplate


@dataclass(eq=False, slots=True)
class Candidate:
    """A prompt that was tried, or is about to be."""

    number: int
    """Counts the candidates in the order in which they were found, from 0, the first prompt."""
    prompt: PromptTemplate
    resources: NamedResources
    """The whole bundle that the agent is given."""
    resources_id: str
    """Where the store has it."""
    rewards: dict[int, float | None] = field(default_factory=dict)
    """Validation sample -> reward, None for a sample that was lost."""

    @property
    def score(self) -> float | None:
        """The mean over all validation samples that gave a reward, in whatever round; None when none did."""
        rewards = [reward for reward in self.rewards.values() if reward is not None]
        return fmean(rewards) if rewards else None


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort by score, the older one first where scores are equal. Those without a score are left out."""
    scores = {candidate: score for candidate in candidates if (score := candidate.score) is not None}
    return _sorted(scores)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two candidates on the samples that gave both of them a reward."""

    mean: float
    reference_mean: float
    samples: int


def compare(candidate: Candidate, reference: Candidate) -> Comparison | None:
    """Compare a candidate with another on the samples that gave both a reward; None when there is none."""
    pairs = [
        (reward, other)
        for sample, reward in candidate.rewards.items()
        if reward is not None and (other := reference.rewards.get(sample)) is not None
    ]
    if not pairs:
        return None
    rewards, others = zip(*pairs, strict=True)
    return Comparison(mean=fmean(rewards), reference_mean=fmean(others), samples=len(pairs))


def best_against(reference: Candidate, candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate that gained most over the reference, sample by sample; the reference when none gained.

    A candidate gets nothing from losing the samples that are hard for the reference too.
    """
    gains = {reference: 0.0}
    for candidate in candidates:
        if comparison := compare(candidate, reference):
            gains[candidate] = comparison.mean - comparison.reference_mean
    return _sorted(gains)[0]


def _sorted(scores: Mapping[Candidate, float]) -> list[Candidate]:
    return sorted(scores, key=lambda candidate: (-scores[candidate], candidate.number))
