"""The check that anyone can run; `e2e` trains whole."""

import sys
from pathlib import Path

import pytest
from lightning_tokens.testing import run_checks
from lightning_verl import check


def test_an_unknown_training_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check", "--only", "hf-gppo"])
    with pytest.raises(SystemExit, match="2"):
        run_checks("check", None, check.stages_of, device="cpu")
    assert "no stage hf-gppo here; there are: hf-grpo, hf-ppo, hf-lora, hf-async" in capsys.readouterr().err


def test_a_training_that_fails_says_why_and_the_status_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(check.TRAININGS, "grpo", ["data.train_batch_size=80"])
    monkeypatch.setattr(sys, "argv", ["check", "--only", "hf-grpo"])
    assert run_checks("check", None, check.stages_of, device="cpu") == 1
    printed = capsys.readouterr().out
    assert printed.split()[:4:3] == ["hf-grpo", "FAILED"]
    assert "data.train_batch_size is 80, and the training dataset has 24 samples" in printed
