"""The recorded questions and answers, from the folder that `AGL_TEST_DATA` names, and how the questions are split."""

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypedDict

from lightning_core.errors import ConfigError

TASK = os.environ.get("AGL_RECORDED_TASK", "tracking_shuffled_objects_three_objects")
"""The file that the datasets are made from."""

TRAIN, VAL = 50, 50
"""Sizes; what is left (150 of 250) is held out."""


class Question(TypedDict):
    """A question of BIG-Bench Hard with its right answer: all that the agent's side gets to see."""

    id: str
    question: str
    target: str


class Row(Question):
    """A question with two real answers of one model."""

    direct: str
    """The answer when it was asked for the answer alone."""
    step_by_step: str
    """The answer when it was asked to reason first."""


class Split(NamedTuple):
    """The questions of one task, no question twice."""

    train: list[Question]
    """Edits are made from these."""
    val: list[Question]
    """Prompts are chosen by these."""
    held_out: list[Question]
    """The optimiser never sees these."""


def split(task: str) -> Split:
    """Split the questions of a task, each time in the same way.

    Raises:
        ConfigError: When there is no such task, or no data.
    """
    questions = _shuffled(task)
    return Split(questions[:TRAIN], questions[TRAIN : TRAIN + VAL], questions[TRAIN + VAL :])


def train() -> list[Question]:
    """Return the samples that edits are made from."""
    return split(TASK).train


def val() -> list[Question]:
    """Return the samples that prompts are chosen by."""
    return split(TASK).val


def held_out() -> list[Question]:
    """Return the held-out samples, which the optimiser never sees."""
    return split(TASK).held_out


@cache
def all_rows() -> tuple[Row, ...]:
    """Return the rows of all files."""
    return tuple(row for path in sorted(_folder().glob("*.jsonl")) for row in _read(path))


def _shuffled(task: str) -> list[Question]:
    path = _folder() / f"{task}.jsonl"
    if not path.is_file():
        tasks = ", ".join(sorted(other.stem for other in _folder().glob("*.jsonl")))
        raise ConfigError(f"no recorded task named {task!r}; recorded: {tasks}. Correct AGL_RECORDED_TASK")
    questions = [Question(id=row["id"], question=row["question"], target=row["target"]) for row in _read(path)]
    random.Random(0).shuffle(questions)
    return questions


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _folder() -> Path:
    root = os.environ.get("AGL_TEST_DATA")
    if not root:
        raise ConfigError("AGL_TEST_DATA is not set; set it to the folder that holds bbh_recorded/")
    folder = Path(root) / "bbh_recorded"
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}; AGL_TEST_DATA must name the folder that holds bbh_recorded/")
    return folder
