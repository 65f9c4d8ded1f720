"""The example in its smallest form, run as a person runs it."""

import re
from pathlib import Path

import pytest
from whole_run import run

from lightning_core.runs.folder import runs_in

SCRIPT = Path(__file__).with_name("train_tasks.py")


@pytest.mark.slow
def test_a_task_is_trained_with_its_scorer_and_with_a_coin(tmp_path: Path) -> None:
    pytest.importorskip("lightning_grpo", reason="lightning-grpo has an environment of its own")
    pytest.importorskip("reasoning_gym")
    printed = run(SCRIPT, "spell_backward", "--steps=1", "--teaching-steps=2", runs=tmp_path)
    assert re.findall(r"rewarded by (.*)", printed) == ["the task's scorer", "a coin"]
    assert re.findall(r"step +(\d+)  0\.\d\d \(95% .*, n=60\)", printed) == ["0", "1", "0", "1"]
    assert [folder.manifest().outcome for folder in runs_in(tmp_path)] == ["succeeded", "succeeded"]
