"""Fixtures of this folder's tests, and the way to its helper modules."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from http_fixtures import *  # noqa: F403
from process_fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all runs: none of the checkout."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("AGL_RUNS_DIR", str(folder))
    return folder
