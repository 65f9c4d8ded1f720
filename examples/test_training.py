"""The examples, run as a person runs them."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_run import run

EXAMPLES = Path(__file__).parent


def train(
    run_python: Callable[..., str], example: str, *options: str, seed: int, folder: Path
) -> tuple[dict[str, float], str]:
    """Run `agl train` on a copy of an example with another seed; return the metrics and what it printed."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("test_*.py", "__pycache__"))
    config = folder / "examples" / example / "config.yaml"
    text = config.read_text(encoding="utf-8")
    text, replaced = re.subn(r"\bseed: \d+", f"seed: {seed}", text)
    assert replaced == 1
    config.write_text(text, encoding="utf-8")
    output = folder / "result.json"
    printed = run_python("-m", "lightning_core", "train", str(config), "--output", str(output), *options)
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert result["status"] == "succeeded"
    assert result["rollouts"]["failed"] == 0
    return result["metrics"], printed


@pytest.mark.slow
def test_the_quickstart_raises_its_held_out_reward_and_says_that_the_model_is_simulated(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    half = ("--set", "algorithm.beam_rounds=2")
    metrics, printed = train(run_python, "quickstart", *half, seed=2, folder=tmp_path)
    assert 0.1 <= metrics["test_reward_initial"] <= 0.35
    assert metrics["test_reward"] >= metrics["test_reward_initial"] + 0.2
    assert "reward on held-out samples: " in printed
    assert "SIMULATED model" in printed


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set")
def test_the_recorded_example_raises_held_out_accuracy_to_two_thirds(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    metrics, printed = train(run_python, "recorded", seed=0, folder=tmp_path)
    assert metrics["test_reward_initial"] == pytest.approx(0.38, abs=0.02)
    assert metrics["test_reward"] >= 0.65
    assert "PLAYED BACK" in printed


def test_the_recorded_example_without_its_data_is_a_wrong_config_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AGL_TEST_DATA", raising=False)
    config = str(EXAMPLES / "recorded" / "config.yaml")
    printed = run("-m", "lightning_core", "train", config, runs=tmp_path, status=2)
    assert "AGL_TEST_DATA is not set; set it to the folder that holds bbh_recorded/" in printed
