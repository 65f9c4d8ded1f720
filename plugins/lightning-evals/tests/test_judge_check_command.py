"""`agl judge-check`: how well a grader agrees with people."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lightning_core.cli import agl
from lightning_core.runs.folder import runs_in

GRADERS = """
def polite(task, result):
    assert "label" not in str(task), "the grader sees the label"
    return float("please" in result.lower())

def broken(result):
    raise KeyError("rubric")
"""
CONFIG = "agent: no_module:at_all\nalgorithm: apo\nreward: judged_graders.py:polite\ntrain_dataset: none.jsonl\n"
LABELS = [
    {"task": "Ask for water.", "result": "Water, please.", "label": 1},
    {"task": "Ask for bread.", "result": "Bread!", "label": 0},
    {"task": "Ask for salt.", "result": "Please, the salt.", "label": 0},
    {"task": "Ask for oil.", "result": "Oil!", "label": 0},
]

Agl = Callable[..., Result]


@pytest.fixture
def agl_judge(own_folder: Path, runs_dir: Path) -> Agl:
    (own_folder / "judged_graders.py").write_text(GRADERS)
    (own_folder / "config.yaml").write_text(CONFIG)
    (own_folder / "labels.jsonl").write_text("\n".join(map(json.dumps, LABELS)))
    return lambda *arguments: CliRunner().invoke(agl, ["judge-check", "config.yaml", "labels.jsonl", *arguments])


def test_it_says_how_well_they_agree_and_where_they_do_not(agl_judge: Agl, runs_dir: Path) -> None:
    ended = agl_judge()
    assert ended.exit_code == 0, ended.output
    # 3 of 4 agree; kappa is (0.75 - 0.5) / (1 - 0.5).
    assert "agreement with the labels: 0.75 (95% 0.30..0.95, n=4), kappa 0.50\n" in ended.stdout
    assert "label 0, judged 1: Ask for salt." in ended.stdout
    assert "Ask for water" not in ended.stdout
    (run,) = runs_in(runs_dir)
    result = run.manifest().result
    assert result is not None
    assert result.metrics["agreement"] == 0.75
    assert result.metrics["kappa"] == 0.5


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("text", "a labelled sample is a mapping with task, result and label"),
        (
            {"task": "a", "label": 1},
            "labelled sample 1: result: Field required; a labelled sample is a mapping",
        ),
        ({"task": "a", "result": "b", "label": "good"}, "labelled sample 1: label: Input should be a valid number; "),
    ],
)
def test_a_sample_without_a_label_is_named(agl_judge: Agl, sample: object, words: str) -> None:
    Path("labels.jsonl").write_text(json.dumps(sample))
    ended = agl_judge()
    assert ended.exit_code != 0
    assert words in ended.stderr


def test_a_grader_that_scores_nothing_fails(agl_judge: Agl) -> None:
    ended = agl_judge("--set", "reward=judged_graders.py:broken")
    assert ended.exit_code == 1
    assert (
        "the labelled samples: none of 4 rollouts gave a reward; the first: GraderError: grader broken" in ended.stderr
    )


def test_a_config_without_a_grader_is_refused(agl_judge: Agl) -> None:
    ended = agl_judge("--set", "reward=null")
    assert ended.exit_code == 2
    assert "config.yaml names no grader; add one, as in reward: {name: judge, rubric: ...}" in ended.stderr
