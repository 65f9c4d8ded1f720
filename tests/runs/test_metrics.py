"""What an algorithm reported, kept a line at a time."""

import json
import math
from pathlib import Path

import pytest

from lightning_core.errors import RunFolderError
from lightning_core.runs.metrics import MetricsFile, Report, newest_of, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *reports: tuple[dict[str, float | None], int | None]) -> MetricsFile:
    file = MetricsFile(path)
    for metrics, step in reports:
        file.append(metrics, step)
    file.close()
    return file


def test_each_report_is_a_line_with_its_time(path: Path) -> None:
    write(path, ({"reward": 0.5}, 1), ({"reward": math.nan, "loss": math.inf}, None))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.pop("time").startswith("20")
    assert first == {"step": 1, "metrics": {"reward": 0.5}}
    assert second["metrics"] == {"reward": None, "loss": None}
    assert read_metrics(path) == [Report(1, {"reward": 0.5}), Report(None, {"reward": None, "loss": None})]


def test_what_was_reported_before_is_known_and_not_written_again(path: Path) -> None:
    write(path, ({"reward": 0.5}, 1), ({"reward": 0.7, "loss": 1.0}, 2))
    before = path.read_text()
    resumed = write(path, ({"reward": 0.5}, 1), ({"reward": 0.7, "loss": 1.0}, None))
    assert resumed.newest == {"reward": 0.7, "loss": 1.0}
    assert path.read_text() == before
    write(path, ({"reward": 0.7, "loss": 1.0}, 3))
    assert [report.step for report in read_metrics(path)] == [1, 2, 3]


def test_a_report_that_goes_back_to_an_earlier_one_is_written(path: Path) -> None:
    write(path, ({"is_proven": 0.0}, 1), ({"is_proven": 1.0}, 2))
    assert write(path, ({"is_proven": 0.0}, None)).newest == {"is_proven": 0.0}
    assert newest_of(read_metrics(path)) == {"is_proven": 0.0}


def test_metric_that_was_taken_back_has_no_value(path: Path) -> None:
    write(path, ({"reward": 0.5, "gain": 0.25}, 1), ({"reward": 0.0, "gain": None}, 2))
    assert write(path).newest == newest_of(read_metrics(path)) == {"reward": 0.0}
    assert json.loads(path.read_text().splitlines()[1])["metrics"] == {"reward": 0.0, "gain": None}


def test_line_that_a_kill_cut_short_is_left_out_and_overwritten(path: Path) -> None:
    write(path, ({"reward": 0.5}, 1))
    with open(path, "a") as file:
        file.write('{"time": "2026-')
    assert read_metrics(path) == [Report(1, {"reward": 0.5})]
    write(path, ({"reward": 0.6}, 2))
    assert read_metrics(path) == [Report(1, {"reward": 0.5}), Report(2, {"reward": 0.6})]


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"step": 1}', "3"])
def test_line_that_is_no_report_is_told(line: str, path: Path) -> None:
    write(path, ({"reward": 0.5}, 1))
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2 is damaged: it is not a report; take the line out"):
        read_metrics(path)
