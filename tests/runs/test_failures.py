"""Failures, grouped by cause."""

import pytest

from lightning_core.runs import Failure
from lightning_core.runs.result import group_failures
from lightning_core.types import Attempt, AttemptedRollout


def failed(number: int, message: str, *, kind: str = "ValueError") -> AttemptedRollout:
    attempt = Attempt(
        rollout_id=f"ro-{number}",
        attempt_id=f"at-{number}",
        sequence_id=1,
        start_time=0.0,
        status="failed",
        metadata={"failure": {"type": kind, "message": message}},
    )
    return AttemptedRollout(rollout_id=f"ro-{number}", input=number, start_time=0.0, status="failed", attempt=attempt)


def test_same_words_are_one_cause_and_the_most_frequent_comes_first() -> None:
    assert group_failures([failed(1, "no key"), failed(2, "no model"), failed(3, "no model")]) == [
        Failure("ValueError: no model", 2, "ro-2", "ValueError: no model", 2),
        Failure("ValueError: no key", 1, "ro-1", "ValueError: no key", 1),
    ]


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ("no price for 'apple'", "no price for 'two pears'", "no price for …"),
        ("line 3, column 17", "line 12, column 4", "line …, column …"),
        ("row 417 has 502 columns", "row 12 has 511 columns", "row … has … columns"),
        ("Error code: 429 after 417 ms", "Error code: 429 after 3 ms", "Error code: 429 after … ms"),
        ("got <Page at 0x7f3c9ad0>", "got <Page at 0x55D1>", "got <Page at …>"),
        ("rollout ro-0123456789abcdef is gone", "rollout ro-fedcba9876543210 is gone", "rollout ro-… is gone"),
    ],
)
def test_what_varies_from_task_to_task_does_not_make_another_cause(first: str, second: str, cause: str) -> None:
    (failure,) = group_failures([failed(1, first), failed(2, second)])
    assert failure == Failure(f"ValueError: {cause}", 2, "ro-1", f"ValueError: {first}", 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Error code: 429", "Error code: 500"),
        ("HTTP Error 404: Not Found", "HTTP Error 410: Gone"),
        ("the service answered 502: no", "the service answered 503: no"),
        ("429, message='slow down'", "503, message='slow down'"),
        ("429 Too Many Requests", "503 Service Unavailable"),
        ("can't open the user's file", "can't read the user's file"),
        ("no key", "no model"),
    ],
)
def test_different_causes_stay_apart(first: str, second: str) -> None:
    assert len(group_failures([failed(1, first), failed(2, second)])) == 2
