"""What the issue of prompt optimisation promises, measured; `proof.py` prints the same."""

import os

import pytest
from proof import MAIN_TASK, SEEDS, TASKS, against_random, held_out_gains, with_shuffled_rewards
from recorded_data import split
from trial_run import FIRST, SMALL, held_out_gain, mean_reward, optimise, search_at_random, shuffled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("AGL_TEST_DATA"), reason="AGL_TEST_DATA is not set"),
]


@pytest.mark.parametrize("task", TASKS)
async def test_held_out_accuracy_rises_with_each_seed(task: str) -> None:
    for outcome in await held_out_gains(task):
        print(task, outcome.gain)
        assert outcome.gain.n == 150
        assert outcome.gain.is_gain, outcome
        if task == MAIN_TASK:
            assert outcome.gain.before == pytest.approx(0.38, abs=0.02)
            assert outcome.gain.after >= 0.70, outcome


async def test_with_shuffled_rewards_there_is_no_gain_beyond_the_interval() -> None:
    for seed, outcome in zip(SEEDS, await with_shuffled_rewards(), strict=True):
        print(seed, outcome.gain)
        assert not outcome.gain.is_gain, outcome


async def test_at_equal_calls_it_is_better_than_random_search_on_the_mean_of_ten_seeds() -> None:
    difference, calls = await against_random(SMALL)
    print(difference, calls)
    assert difference.n == 10
    assert difference.after > difference.before


async def test_a_search_of_the_proof_is_repeatable() -> None:
    questions = split(MAIN_TASK)
    assert await optimise(questions, seed=1, options=SMALL) == await optimise(questions, seed=1, options=SMALL)


def test_random_search_spends_what_it_is_given_and_no_more() -> None:
    questions = split(MAIN_TASK)
    for seed in range(20):
        outcome = search_at_random(questions, seed=seed, calls=400, options=SMALL)
        assert 400 - 1 - SMALL["val_batch_size"] * (1 + SMALL["beam_width"]) <= outcome.calls <= 400


def test_shuffled_targets_are_the_same_ones_and_make_all_prompts_equal() -> None:
    questions = split(MAIN_TASK)
    mixed = shuffled(questions, seed=0)
    for before, after in zip(questions, mixed, strict=True):
        assert sorted(each["target"] for each in before) == sorted(each["target"] for each in after)
        assert [each["id"] for each in before] == [each["id"] for each in after]
    assert mean_reward(FIRST, mixed.held_out) == pytest.approx(1 / 3, abs=0.1)
    assert not held_out_gain("Think step by step.\n\n{question}", mixed).is_gain
