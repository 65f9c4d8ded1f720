"""`agl train --set` and `--dry-run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

AGENT = """
from lightning_core import rollout

print("imported")

@rollout
async def solve(task):
    raise SystemExit("nothing is run")
"""
CONFIG = "agent: dry_agent:solve\nalgorithm: baseline\ntrain_dataset: train.jsonl\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dry_agent.py").write_text(AGENT)
    (tmp_path / "train.jsonl").write_text("1\n2\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def train(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightning_core", "train", "config.yaml", *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_dry_run_prints_the_resolved_config_and_leaves_nothing_behind(folder: Path) -> None:
    before = sorted(path.name for path in folder.rglob("*"))
    done = train(folder, "--dry-run", "--set", "algorithm.n_epochs=3", "--set", "n_runners=2")
    assert done.returncode == 0, done.stderr
    printed, _, text = done.stdout.partition("# train_dataset: 2 samples\n")
    assert printed == "imported\n"
    values = yaml.safe_load(text)
    assert values["algorithm"] == {"name": "baseline", "n_epochs": 3}
    assert values["n_runners"] == 2
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_dry_run_prints_the_resolved_config_as_json(folder: Path) -> None:
    done = train(folder, "--dry-run", "--json", "--set", "algorithm.n_epochs=3")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["event"] == "config"
    assert printed["config"]["algorithm"] == {"name": "baseline", "n_epochs": 3}


def test_warnings_that_are_logged_are_shown_on_stderr(folder: Path) -> None:
    (folder / "dry_agent.py").write_text(
        "import logging\nfrom lightning_core import rollout\n\n\n@rollout\nasync def solve(task):\n"
        "    logging.getLogger('lightning_core.mine').warning('mine.odd task=%s', task)\n"
        "    logging.getLogger('lightning_core.mine').info('mine.usual')\n    return 1.0\n"
    )
    done = train(folder)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all("mine.odd" in line and "rollout_id=ro-" in line for line in lines)


def test_a_client_whose_calls_nothing_records_is_told(folder: Path) -> None:
    (folder / "cohere.py").write_text("")
    (folder / "dry_agent.py").write_text("import cohere\n" + AGENT)
    done = train(folder, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "To record cohere: pip install opentelemetry-instrumentation-cohere" in done.stderr
