"""What the tests of the commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all runs: none of the checkout."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("AGL_RUNS_DIR", str(folder))
    return folder
