"""The check that anyone can run; `e2e` trains whole."""

import pytest
from lightning_verl import check


def test_an_unknown_training_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        check.main(["--device", "cpu", "--only", "hf-gppo"])
    assert "no training hf-gppo here; there are: hf-grpo, hf-ppo, hf-lora, hf-async" in capsys.readouterr().err


def test_a_training_that_fails_says_why_and_the_status_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(check.TRAININGS, "grpo", ["data.train_batch_size=80"])
    assert check.main(["--device", "cpu", "--only", "hf-grpo"]) == 1
    printed = capsys.readouterr().out
    assert printed.split()[:2] == ["hf-grpo", "FAILED"]
    assert "data.train_batch_size is 80, and the training dataset has 24 samples" in printed
