"""The check that anyone can run, with one training on this processor."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = [sys.executable, "-m", "lightning_verl.check", "--device", "cpu"]


def test_an_unknown_training_is_refused_with_those_that_there_are() -> None:
    ran = subprocess.run([*CHECK, "--only", "hf-gppo"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "no training hf-gppo here; there are: hf-grpo, hf-ppo, hf-lora, hf-async" in ran.stderr


@pytest.mark.timeout(120)
def test_a_training_past_its_limit_is_ended_and_the_status_tells(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*CHECK, "--only", "hf-grpo", "--limit", "1", "--folder", str(tmp_path / "check")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout.split()[:2] == ["hf-grpo", "FAILED"]
    assert str(tmp_path / "check" / "hf-grpo" / "log") in ran.stdout
