"""`agl train --dry-run` finds what a run of apo would end at."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl

CONFIG = """
agent: sorting_agent:classify
algorithm: apo
train_dataset: [1, 2]
val_dataset: [3, 4]
"""
PROMPT = "initial_resources: {main_prompt: {resource_type: prompt_template, template: 'Sort: {ticket}'}}\n"
AGENT = """
from lightning_core import rollout


@rollout
async def classify(task, prompt_template):
    return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sorting_agent", raising=False)
    monkeypatch.setenv("AGL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "sorting_agent.py").write_text(AGENT)
    return tmp_path


def train(folder: Path, text: str, *options: str) -> Result:
    (folder / "config.yaml").write_text(text)
    return CliRunner().invoke(agl, ["train", "config.yaml", *options])


@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry run", "run"])
def test_a_missing_prompt_is_wrong_use_and_nothing_is_run(folder: Path, options: tuple[str, ...]) -> None:
    result = train(folder, CONFIG, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: config.yaml:3: algorithm: apo improves the prompt templates of the initial")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry run", "run"])
def test_a_missing_key_is_told_before_a_run(folder: Path, options: tuple[str, ...]) -> None:
    result = train(folder, CONFIG + PROMPT, *options)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: apo asks models to improve the prompt, and has no key for them; set OPENAI_API"
    )
    assert "agl resume" not in result.output
    assert not (folder / "runs").exists()


def test_a_key_is_enough_for_a_dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert train(folder, CONFIG + PROMPT, "--dry-run").exit_code == 0
