"""What the commands do where their output goes nowhere, and how much they need to say a little."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGL = f"{sys.executable} -m lightning_core"


def shell(command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("command", ["plugins", "--version", "serve --help"])
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_output_is_nobody_reading(command: str, closed: str) -> None:
    done = shell(f"{AGL} {command} {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_closed_output_is_not_where_the_next_file_goes(tmp_path: Path) -> None:
    done = shell(f"{AGL} init demo >&-", tmp_path)
    assert done.returncode == 0
    assert "wrote" not in (tmp_path / "demo" / "README.md").read_text()


def write_job(folder: Path) -> None:
    (folder / "quick_agent.py").write_text(
        "from lightning_core import rollout\n\n\n@rollout\nasync def solve(task):\n    return 1.0\n"
    )
    (folder / "config.yaml").write_text("agent: quick_agent:solve\nalgorithm: baseline\ntrain_dataset: [1]\n")


def test_options_without_effect_are_told(tmp_path: Path) -> None:
    write_job(tmp_path)
    done = shell(f"{AGL} train config.yaml --dry-run --set 'strategy={{name: local, join_timeout: 3}}'", tmp_path)
    assert done.returncode == 0
    assert "LocalStrategy(join_timeout=) has no effect: everything is a task of one event loop" in done.stderr


@pytest.mark.parametrize("command", ["plugins", "serve --help", "train config.yaml"])
def test_reader_that_has_had_enough_ends_the_command_without_a_traceback(command: str, tmp_path: Path) -> None:
    write_job(tmp_path)
    for reader in ("head -1", "true"):
        done = shell(f"{AGL} {command} | {reader}", tmp_path)
        assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["plugins", "train config.yaml --json"])
def test_full_disk_is_one_line(command: str, tmp_path: Path) -> None:
    write_job(tmp_path)
    done = shell(f"{AGL} {command} >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
