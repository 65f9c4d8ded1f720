"""The whole example, run as a person runs it: it learns from rewards."""

import re
from pathlib import Path

import pytest
from whole_run import run

from lightning_core.runs.folder import runs_in

SCRIPT = Path(__file__).with_name("train.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def numbers_of(pattern: str, printed: str) -> list[float]:
    found = re.search(pattern, printed)
    assert found is not None, printed
    return [float(each) for each in found.groups()]


PAIRED = r"problem by problem:\s+\S+ → \S+ \((\S+), 95% (\S+)\.\.(\S+), n=240\)"


def test_rewards_raise_the_accuracy_on_pairs_of_numbers_that_were_never_seen(tmp_path: Path) -> None:
    printed = run(SCRIPT, "--steps=10", runs=tmp_path)
    (well_formed,) = numbers_of(r"well-formed calls on held-out problems: ([\d.]+)", printed)
    assert well_formed >= 0.9
    gain, low, _ = numbers_of(PAIRED, printed)
    assert gain >= 0.1, "with a third of the steps of the example"
    assert low > 0
    (gib,) = numbers_of(r"and ([\d.]+) GiB of memory at most", printed)
    assert gib < 6
    (folder,) = runs_in(tmp_path)
    assert folder.manifest().outcome == "succeeded"
    assert (folder.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    model = re.search(r"the model  (\S+)", printed)
    assert model is not None
    assert (Path(model[1]) / "config.json").is_file()
