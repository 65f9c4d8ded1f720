"""What an algorithm reported, as lines of JSON: `{"time": ..., "step": 1, "metrics": {...}}`."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

from lightning_core.errors import RunFolderError
from lightning_core.runs.manifest import private


class Report(NamedTuple):
    """One line."""

    step: int | None
    metrics: dict[str, float | None]
    """Null for a number that is not finite, and for one that was taken back."""


class MetricsFile:
    """Writes reports, but for what a run that goes on repeats: those that were there before this was opened, and those
    without a step that change nothing.

    Args:
        path: The file, made where there is none.

    Raises:
        RunFolderError: When it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = read_metrics(path)
        self.newest = newest_of(self._before)
        """The newest value of each metric; null is none."""
        try:
            file = open(path, "a", encoding="utf-8", opener=private)  # noqa: SIM115  # until `close`
            self._file: IO[str] = file
            self._file.truncate(_whole_lines(path))  # what a kill cut short
        except OSError as exc:
            raise RunFolderError(f"cannot write {path}: {exc.strerror}") from exc

    def append(self, metrics: Mapping[str, float | None], step: int | None) -> None:
        """Write a report.

        Raises:
            RunFolderError: When it cannot be written.
        """
        report = Report(
            step,
            {name: None if value is None or not math.isfinite(value) else value for name, value in metrics.items()},
        )
        newest = merged(self.newest, report.metrics)
        if report in self._before or (self._before and step is None and newest == self.newest):
            return
        self.newest = newest
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._file.write(json.dumps({"time": time, **report._asdict()}, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as exc:
            raise RunFolderError(f"cannot write {self._path}: {exc.strerror}") from exc

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a report that could not be written, of which `append` has told
            self._file.close()


def read_metrics(path: Path) -> list[Report]:
    """Read the reports of a run, oldest first. What a kill cut short at the end is left out; no file has none.

    Raises:
        RunFolderError: When it cannot be read, or a line is not a report; says which.
    """
    try:
        lines = path.read_bytes()[: _whole_lines(path)].splitlines()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise RunFolderError(f"cannot read {path}: {exc.strerror}") from exc
    reports = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            reports.append(Report(record["step"], dict(record["metrics"])))
        except (ValueError, KeyError, TypeError) as exc:
            raise RunFolderError(f"{path}:{number} is damaged: it is not a report; take the line out") from exc
    return reports


def merged(metrics: Mapping[str, float], report: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics after a report: None takes a value away, and what is not in the report stays."""
    return {name: value for name, value in {**metrics, **report}.items() if value is not None}


def newest_of(reports: Iterable[Report]) -> dict[str, float]:
    """Return the metrics after all of these reports, the oldest first."""
    newest: dict[str, float] = {}
    for report in reports:
        newest = merged(newest, report.metrics)
    return newest


def _whole_lines(path: Path) -> int:
    """Return the size of a file up to the end of its last whole line."""
    return path.read_bytes().rfind(b"\n") + 1
