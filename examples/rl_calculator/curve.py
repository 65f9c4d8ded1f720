"""How a training went, as a picture and as lines for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lightning_core.algorithm.estimates import Estimate
from lightning_core.runs.metrics import Report

_WIDTH = 40
"""Of a bar, in characters."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Accuracy(NamedTuple):
    """A share of right answers, with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured, by step; 0 is before the first."""

    rewards: dict[int, float] = field(default_factory=dict)
    """The mean reward of a step's rollouts: problems to learn from, with tokens drawn."""
    accuracies: dict[int, Accuracy] = field(default_factory=dict)
    """On problems with other pairs of numbers."""

    @classmethod
    def of(cls, reports: Sequence[Report]) -> "Curve":
        """Read it out of a run's metrics, where the newest of a step counts."""
        curve = cls()
        for step, metrics in reports:
            reward = metrics.get("training/reward")
            if reward is not None and step is not None:
                curve.rewards[step] = reward
            found = [metrics.get(f"val/reward{end}") for end in ("", "_low", "_high")]
            value, low, high = found
            if value is not None and low is not None and high is not None:
                curve.accuracies[step or 0] = Accuracy(value, low, high)
        return curve

    def lines(self) -> list[str]:
        """Return a line for each measurement of the accuracy."""
        return [f"step {step:3}  {each.value:.2f}  {bar(each.value)}" for step, each in sorted(self.accuracies.items())]


def bar(share: float) -> str:
    """Return a bar for a share between 0 and 1."""
    eighths = round(share * _WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def draw(curve: Curve, path: Path, *, before: Estimate | None = None, after: Estimate | None = None) -> None:
    """Write a picture.

    Args:
        curve: What it shows.
        path: The PNG file.
        before: The accuracy on the held-out problems before the training.
        after: The same after it.
    """
    # It takes half a second, and it is not needed before the end.
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    axes.plot(*_columns(curve.rewards), color="0.7", linewidth=1, label="reward in training")
    steps = sorted(curve.accuracies)
    found = [curve.accuracies[step] for step in steps]
    axes.plot(
        steps, [each.value for each in found], color="tab:blue", marker="o", label="accuracy, other pairs of numbers"
    )
    axes.fill_between(
        steps, [each.low for each in found], [each.high for each in found], color="tab:blue", alpha=0.15, linewidth=0
    )
    last = max([*steps, *curve.rewards, 1])
    for step, estimate in ((0, before), (last, after)):
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            spread = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
            label = f"held-out problems, n={estimate.n}" if step else None
            axes.errorbar([step], [estimate.mean], spread, color="tab:red", fmt="D", capsize=4, label=label)
    axes.axhline(1 / 4, color="0.4", linestyle=":", linewidth=1, label="without reading the problem")
    axes.set(xlabel="step", ylabel="share of right answers", ylim=(0, 1.02), xlim=(-last / 50, last * 1.02))
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _columns(values: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(step for step, value in values.items() if math.isfinite(value))
    return steps, [values[step] for step in steps]
