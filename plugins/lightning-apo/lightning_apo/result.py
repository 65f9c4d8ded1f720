"""What came of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_apo.candidate import Candidate
from lightning_core.algorithm.estimates import Estimate, PairedDifference
from lightning_core.types import PromptTemplate

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
    """How a search stands, or what came of it. Its text is one line for a person."""

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
