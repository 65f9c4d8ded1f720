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


@pytest.mark.parametrize(
    ("config", "status", "error"),
    [
        (CONFIG, 2, "config.yaml:3: algorithm: apo improves the prompt templates of the initial"),
        (CONFIG + PROMPT, 1, "apo asks models to improve the prompt, and has no key for them; set OPENAI_API"),
    ],
    ids=["no prompt", "no key"],
)
@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry run", "run"])
def test_what_is_missing_is_told_before_a_run(
    folder: Path, options: tuple[str, ...], config: str, status: int, error: str
) -> None:
    result = train(folder, config, *options)
    assert result.exit_code == status
    assert result.stderr.startswith(f"Error: {error}")
    assert "agl resume" not in result.output
    assert not (folder / "runs").exists()


def test_a_key_is_enough_for_a_dry_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert train(folder, CONFIG + PROMPT, "--dry-run").exit_code == 0
