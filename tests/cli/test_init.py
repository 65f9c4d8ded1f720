"""`agl init`: a project that trains at once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.cli.init import init

FILES = [
    "README.md",
    "agent.py",
    "config.yaml",
    "data/test.jsonl",
    "data/train.jsonl",
    "data/val.jsonl",
    "simulated_model.py",
    "test_agent.py",
]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def write_project(folder: Path) -> Path:
    assert CliRunner().invoke(init, [str(folder)]).exit_code == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [[], ["--set", "algorithm={name: gepa, reflection_lm: gpt-4.1-mini, max_metric_calls: 260}"]]
)
def test_the_project_trains_at_once_and_gets_better(tmp_path: Path, algorithm: list[str]) -> None:
    project = write_project(tmp_path / "demo")
    done = run(project, "lightning_core", "train", "config.yaml", "--output", "result.json", *algorithm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED model" in done.stderr
    result = json.loads((project / "result.json").read_text())
    assert result["rollouts"]["failed"] == 0
    assert result["metrics"]["test_reward"] >= result["metrics"]["test_reward_initial"] + 0.4
    assert re.search(r"^  reward on held-out samples: 0\.00 → ", done.stdout, re.MULTILINE)
    assert "overlap" not in done.stderr


def test_the_tests_of_the_project_pass(tmp_path: Path) -> None:
    project = write_project(tmp_path / "demo")
    done = run(project, "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_project_is_code_as_its_owner_would_write_it(tmp_path: Path) -> None:
    project = write_project(tmp_path / "demo")
    (project / "ruff.toml").write_text('line-length = 120\nlint.extend-select = ["I", "UP", "B", "SIM"]\n')
    assert run(project, "ruff", "check", "--no-cache").stdout == "All checks passed!\n"
    assert run(project, "ruff", "format", "--check", "--no-cache").returncode == 0


def test_it_says_what_it_wrote_and_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(init, ["demo"])
    assert result.stdout.splitlines() == [
        *(f"wrote demo/{name}" for name in FILES),
        "",
        "Now: cd demo && agl train config.yaml",
    ]
    written = (path.relative_to(tmp_path / "demo") for path in (tmp_path / "demo").rglob("*") if path.is_file())
    assert sorted(path.as_posix() for path in written) == FILES


def test_without_a_name_it_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(init, [])
    assert result.exit_code == 0
    assert result.stdout.endswith("\nNow: agl train config.yaml\n")
    assert (tmp_path / "agent.py").is_file()


def test_nothing_is_written_where_something_would_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("mine")
    (tmp_path / "config.yaml").write_text("mine")
    result = CliRunner().invoke(agl, ["init", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == (
        f"Error: nothing was written, because this is there already: {tmp_path}/agent.py, {tmp_path}/config.yaml; "
        "name another folder\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.py", "config.yaml"]
    assert (tmp_path / "agent.py").read_text() == "mine"
