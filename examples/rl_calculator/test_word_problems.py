import re
from collections import Counter

import pytest
from calculator import evaluate
from word_problems import EXPRESSIONS, Pair, make_problems, split_pairs


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_pairs_of_numbers_are_others_than_those_to_learn_from(seed: int) -> None:
    learned, held_out = split_pairs(seed)
    assert (len(learned), len(held_out)) == (48, 15)
    assert not set(learned) & set(held_out)
    train, test = make_problems(learned, 480, seed=seed), make_problems(held_out, 240, seed=seed)
    assert not {each["question"] for each in train} & {each["question"] for each in test}


def test_whichever_calculation_a_model_likes_best_it_is_right_once_in_four_times() -> None:
    problems = make_problems(split_pairs(0)[1], 240, seed=0)
    for blind in EXPRESSIONS:
        said = [evaluate(blind.format(**_numbers(each["question"]))) for each in problems]
        right = sum(each["answer"] == answer for each, answer in zip(problems, said, strict=True))
        assert right == 60


def test_problems_are_the_same_for_the_same_seed_and_none_occurs_twice() -> None:
    learned, _ = split_pairs(0)
    problems = make_problems(learned, 240, seed=3)
    assert problems == make_problems(learned, 240, seed=3)
    others = make_problems(learned, 60, seed=4, without=problems)
    assert max(Counter(each["question"] for each in [*problems, *others]).values()) == 1


def test_answers_are_whole_numbers_of_things() -> None:
    assert all(each["answer"].isdecimal() for each in make_problems(split_pairs(0)[0], 240, seed=0))


def test_a_number_of_problems_that_leaves_a_kind_out_is_refused() -> None:
    with pytest.raises(ValueError, match="number is 10; it is a multiple of 4"):
        make_problems([Pair(6, 2)], 10, seed=0)


def _numbers(question: str) -> dict[str, str]:
    return dict(zip("ab", re.findall(r"\d+", question), strict=True))
