"""Wrong options are refused before anything runs; what a search may cost is known."""

from typing import Any

import pytest
from gepa_toys import TRAIN, VAL, ToyRun
from lightning_gepa import GEPA

from lightning_core.errors import AlgorithmError, InvalidInput
from lightning_core.runs.plan import plan_of


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("max_metric_calls", 0, "an integer of at least 1"),
        ("module_selector", "some", "one of round_robin, all"),
        ("perfect_score", "1", "the highest reward that there is, or none if there is no such"),
        ("prompt_names", [], "a list of names of prompts, or none for all of them"),
        ("prompt_names", "main", "a list of names of prompts, or none for all of them"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_has_to_be(option: str, value: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is .*; it has to be {what}$"):
        GEPA(**{option: value})


def test_the_plan_says_what_a_search_does_at_most() -> None:
    assert str(GEPA(max_metric_calls=1300, reflection_lm="m").plan(TRAIN, VAL)) == (
        "at most 1,300 rollouts and 430 model calls of its own (m)"
    )


@pytest.mark.parametrize("limit", [40, 50, 120])
async def test_with_held_out_samples_a_run_stays_within_the_total(limit: int) -> None:
    run = ToyRun(test=[{"question": f"test {number}", "difficulty": number / 20} for number in range(20)])
    algorithm = GEPA(max_metric_calls=limit)
    algorithm.set_initial_resources(run.resources)
    plan = plan_of(algorithm, TRAIN, VAL, run.test)
    result = await run.fit(max_metric_calls=limit)
    assert plan is not None
    assert plan.rollouts == limit + 40
    assert str(plan).startswith(
        f"at most {limit + 40} rollouts: 40 on held-out samples, and by the algorithm at most {limit} "
    )
    assert result.rollouts.succeeded <= plan.rollouts


def test_too_few_rollouts_for_one_proposal_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"max_metric_calls is 25, and the first proposal takes 26: 10 .* raise it"):
        GEPA(max_metric_calls=25).plan(TRAIN, VAL)


def test_there_is_no_result_before_a_run() -> None:
    with pytest.raises(AlgorithmError, match="there is no best prompt yet"):
        GEPA().get_result()
