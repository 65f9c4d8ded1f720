import os

import pytest
import recorded_data

from lightning_core.errors import ConfigError

recorded = pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set")


@recorded
def test_the_splits_share_no_question_and_hold_all() -> None:
    splits = [recorded_data.train(), recorded_data.val(), recorded_data.held_out()]
    assert [len(split) for split in splits] == [50, 50, 150]
    assert len({row["id"] for split in splits for row in split}) == 250


@recorded
def test_the_splits_are_the_same_each_time() -> None:
    assert recorded_data.held_out() == recorded_data.held_out()


@recorded
def test_an_unknown_task_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_data, "TASK", "chess")
    with pytest.raises(ConfigError, match=r"no recorded task named 'chess'; recorded: .*navigate"):
        recorded_data.train()


def test_without_the_variable_the_error_says_which_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_TEST_DATA", raising=False)
    with pytest.raises(ConfigError, match="AGL_TEST_DATA is not set"):
        recorded_data.train()


def test_a_folder_without_recordings_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("AGL_TEST_DATA", str(tmp_path_factory.mktemp("data")))
    with pytest.raises(ConfigError, match="bbh_recorded; AGL_TEST_DATA must name"):
        recorded_data.train()
