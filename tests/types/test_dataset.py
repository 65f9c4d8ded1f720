"""What is said of samples."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from lightning_core.types import sample_key


@dataclass
class Task:
    question: str
    hints: tuple[str, ...] = ()


class Model(BaseModel):
    question: str


class Plain:
    def __init__(self, question: object) -> None:
        self.question = question


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2]}, {"b": (2,), "a": 1}),
        (Task("q", ("h",)), Task("q", ("h",))),
        (Model(question="q"), Model(question="q")),
        (Plain(Task("q")), Plain(Task("q"))),
        ({1, 2}, {2, 1}),
        ({1: "a", "b": 2}, {1: "a", "b": 2}),
    ],
)
def test_equal_samples_have_one_key(one: Any, other: Any) -> None:
    assert sample_key(one) == sample_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), (Task("q"), Task("p")), (Plain("a"), Plain("b")), ({1}, {2}), (None, "null")]
)
def test_other_samples_have_another(one: Any, other: Any) -> None:
    assert sample_key(one) != sample_key(other)


def test_sample_that_holds_itself_has_a_key() -> None:
    sample: list[Any] = []
    sample.append(sample)
    assert sample_key(sample) == "[[...]]"
