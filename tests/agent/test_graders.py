import re
from collections.abc import Callable
from typing import Any

import pytest

from lightning_core.agent import Grader
from lightning_core.errors import InvalidComponent, UnknownComponent
from lightning_core.types import Attempt, AttemptedRollout


def exact(result: Any, task: Any) -> float:
    return float(result == task)


def attempted() -> AttemptedRollout:
    attempt = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0)
    return AttemptedRollout(rollout_id="ro-1", input="task", start_time=0, attempt=attempt)


def score(function: Callable[..., Any], result: Any = "answer") -> Any:
    return Grader(function).bind(result=result, spans=[], rollout=attempted())()


def test_grader_is_given_what_it_has_parameters_for() -> None:
    current = attempted()
    assert score(lambda task, result, spans, rollout: (task, result, spans, rollout)) == (
        "task",
        "answer",
        [],
        current,
    )
    assert score(lambda *, result: result) == "answer"
    assert score(exact, "task") == 1.0


def test_other_parameters_keep_their_defaults() -> None:
    assert score(lambda result, scale=3, *args, **kwargs: (scale, args, kwargs)) == (3, (), {})


def test_grader_may_be_a_path_or_a_grader() -> None:
    grader = Grader(f"{__name__}:exact")
    assert grader.name == "exact"
    assert Grader.of(grader) is grader
    assert Grader.of(None) is None
    with pytest.raises(UnknownComponent, match="has no 'exac'"):
        Grader.of(f"{__name__}:exac")


def test_async_grader_is_known_as_one() -> None:
    async def judge(result: Any) -> float:
        return 1.0

    assert Grader(judge).is_async()
    assert not Grader(exact).is_async()


def test_unknown_parameter_is_named_with_what_is_possible() -> None:
    def judge(results: Any) -> float:
        return 1.0

    expected = (
        "judge has a parameter 'results' that nothing can be given for; a grader may have, by name: task, result, "
        "spans, rollout. Did you mean 'result'?"
    )
    with pytest.raises(InvalidComponent, match=re.escape(expected)):
        Grader(judge)


@pytest.mark.parametrize("thing", [3, None, float, [exact]])
def test_only_a_function_is_made_a_grader(thing: Any) -> None:
    with pytest.raises(InvalidComponent, match="a grader is made of a function, not of"):
        Grader(thing)


def test_grader_that_looks_at_nothing_is_refused() -> None:
    with pytest.raises(InvalidComponent, match="takes nothing to score; a grader may have, by name: task, result"):
        Grader(lambda: 1.0)


def test_parameter_by_position_only_says_what_to_leave_out() -> None:
    expected = "takes 'result' by position only; what a grader is given, it is given by name: leave out the '/'"
    with pytest.raises(InvalidComponent, match=re.escape(expected)):
        Grader(lambda result, /: 1.0)
