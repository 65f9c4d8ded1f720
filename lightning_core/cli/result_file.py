"""The result of a run, for programs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_core.cli.console import to_json
from lightning_core.errors import LightningError
from lightning_core.runs import FitResult
from lightning_core.runs.recording import resources_record


def result_record(result: FitResult) -> dict[str, Any]:
    """Return a result as JSON has it, without keys. A number that is not finite is null."""
    record: dict[str, Any] = asdict(result)
    resources = result.best_resources
    record["best_resources"] = None if resources is None else resources_record(resources)
    record["folder"] = None if result.folder is None else str(result.folder)
    return dict(to_json(record))


def write_result(path: Path, result: FitResult) -> None:
    """Write a result as JSON, without keys.

    Raises:
        LightningError: When the file cannot be written.
    """
    try:
        path.write_text(json.dumps(result_record(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise LightningError(f"cannot write the result to {path}: {exc.strerror}") from exc
