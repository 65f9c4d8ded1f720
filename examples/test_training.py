"""The examples, run as a person runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent


def train(example: str, *, seed: int, folder: Path) -> tuple[dict[str, float], str]:
    """Run `agl train` on a copy of an example with another seed; return the metrics and what it printed."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("test_*.py", "__pycache__"))
    config = folder / "examples" / example / "config.yaml"
    text = config.read_text(encoding="utf-8")
    text, replaced = re.subn(r"\bseed: \d+", f"seed: {seed}", text)
    assert replaced == 1
    config.write_text(text, encoding="utf-8")
    output = folder / "result.json"
    finished = subprocess.run(
        [sys.executable, "-m", "lightning_core", "train", str(config), "--output", str(output)],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
            "AGL_RUNS_DIR": str(folder / "runs"),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert result["status"] == "succeeded"
    assert result["rollouts"]["failed"] == 0
    return result["metrics"], finished.stdout + finished.stderr


@pytest.mark.slow
def test_the_quickstart_raises_its_held_out_reward_and_says_that_the_model_is_simulated(tmp_path: Path) -> None:
    metrics, printed = train("quickstart", seed=2, folder=tmp_path)
    assert 0.1 <= metrics["test_reward_initial"] <= 0.35
    assert metrics["test_reward"] >= metrics["test_reward_initial"] + 0.2
    assert "reward on held-out samples: " in printed
    assert "SIMULATED model" in printed


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set")
def test_the_recorded_example_raises_held_out_accuracy_to_two_thirds(tmp_path: Path) -> None:
    metrics, printed = train("recorded", seed=0, folder=tmp_path)
    assert metrics["test_reward_initial"] == pytest.approx(0.38, abs=0.02)
    assert metrics["test_reward"] >= 0.65
    assert "PLAYED BACK" in printed


def test_the_recorded_example_without_its_data_is_a_wrong_config_that_says_what_to_set() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "lightning_core", "train", str(EXAMPLES / "recorded" / "config.yaml")],
        env={name: value for name, value in os.environ.items() if name != "AGL_TEST_DATA"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 2
    assert "AGL_TEST_DATA is not set; set it to the folder that holds bbh_recorded/" in finished.stderr
