from pathlib import Path

import pytest
from curve import Accuracy, Curve, bar, draw

from lightning_core.algorithm.estimates import estimate
from lightning_core.runs.metrics import Report

REPORTS = [
    Report(None, {"test_reward_initial": 0.2}),
    Report(None, {"val/reward": 0.1, "val/reward_low": 0.05, "val/reward_high": 0.2}),
    Report(1, {"training/reward": 0.25, "actor/lr": 0.1}),
    Report(2, {"training/reward": 0.3, "val/reward": 0.5, "val/reward_low": 0.4, "val/reward_high": 0.6}),
    Report(2, {"training/reward": 0.5}),  # the step was taken again, after a kill
]


def test_a_curve_is_read_out_of_what_a_run_reported() -> None:
    curve = Curve.of(REPORTS)
    assert curve.rewards == {1: 0.25, 2: 0.5}
    assert curve.accuracies == {0: Accuracy(0.1, 0.05, 0.2), 2: Accuracy(0.5, 0.4, 0.6)}


@pytest.mark.parametrize(("share", "length"), [(0.0, 0), (0.5, 20), (0.51, 21), (1.0, 40)])
def test_a_bar_is_as_long_as_its_share(share: float, length: int) -> None:
    assert len(bar(share)) == length


def test_lines_tell_the_accuracies_in_their_order() -> None:
    assert [line.split()[1:3] for line in Curve.of(REPORTS).lines()] == [["0", "0.10"], ["2", "0.50"]]


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.png"
    draw(Curve.of(REPORTS), path, before=estimate([0.0, 1.0]), after=estimate([1.0, 1.0]))
    assert path.read_bytes().startswith(b"\x89PNG")
