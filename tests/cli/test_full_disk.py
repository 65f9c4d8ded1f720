"""A disk that takes nothing more: the command has failed, and says so without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
import os, resource
from lightning_core import rollout

def become_full(moment):
    if os.environ.get("FULL") == moment:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # from here on no write succeeds

become_full("before the run")

@rollout
def solve(task):
    become_full("during the run")
    return 1.0
"""
CONFIG = "agent: full_agent:solve\nalgorithm: baseline\ntrain_dataset: [1, 2, 3]\n"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a limit for the size of files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "full_agent.py").write_text(AGENT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def agl(folder: Path, *arguments: str, full: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightning_core", *arguments],
        cwd=folder,
        env={**os.environ, "FULL": full},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_disk_that_becomes_full_fails_the_run_which_goes_on_when_there_is_room(folder: Path, runs_dir: Path) -> None:
    failed = agl(folder, "train", "config.yaml", full="during the run")
    assert failed.returncode == 1, failed.stderr
    assert "Traceback" not in failed.stderr
    error = failed.stderr.splitlines()[-1]
    assert error.startswith("Error: ")
    # What ended the run, rather than what followed from that.
    assert "store.db: there is no room left (disk I/O error)" in error
    [run] = runs_dir.iterdir()
    assert run.name in failed.stdout
    resumed = agl(folder, "resume", run.name)
    assert resumed.returncode == 0, resumed.stderr
    assert "3 rollouts succeeded" in resumed.stdout


def test_a_disk_that_is_full_before_the_run_is_a_failure_and_not_wrong_use(folder: Path) -> None:
    failed = agl(folder, "train", "config.yaml", full="before the run")
    assert failed.returncode == 1, failed.stderr
    [line] = failed.stderr.splitlines()
    assert line.startswith("Error: cannot write ")
    assert line.endswith("lock: File too large")
