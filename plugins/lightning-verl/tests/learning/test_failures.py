import numpy as np
import pytest
from learning_toys import failed, faulty, options, scored
from lightning_verl.learning import FailureWatch, Lesson, failures_depend_on_group, learn_from_group


def group(n: int, failures: int, faults: int = 0) -> Lesson:
    ended = [failed()] * failures + [scored(1.0)] * (n - failures) + [faulty()] * faults
    return learn_from_group(ended, options=options())


@pytest.mark.parametrize(
    ("counts", "p_value"),
    [
        # Two groups of two, two failures: both in one group in 2 of the 6 ways
        ([(2, 2), (2, 0)], 1 / 3),
        # Two groups of three, three failures: all in one group in 2 of the 20 ways
        ([(3, 3), (3, 0)], 1 / 10),
        # As even as can be: no way is more even
        ([(3, 1), (3, 1)], 1.0),
    ],
)
def test_the_p_value_is_the_share_of_ways_that_are_as_uneven(counts, p_value):
    assert failures_depend_on_group(counts, chance=np.random.default_rng(0)) == pytest.approx(p_value, abs=0.05)


def test_failures_on_some_tasks_only_are_told_once():
    watch = FailureWatch()
    lessons = [group(4, 4), group(4, 4), group(4, 0), group(4, 0), group(4, 0)]
    told = watch.see(lessons)
    assert told is not None
    assert told.startswith("failures depend on the task: 8 of 20 rollouts failed, unevenly over 5 tasks (p = 0.0")
    assert "set agentlightning.on_failure" in told
    assert watch.see(lessons * 4) is None


def test_failures_that_hit_all_tasks_alike_are_not_told():
    watch = FailureWatch()
    assert all(watch.see([group(4, 1), group(4, 1), group(4, 2)]) is None for _ in range(20))


def test_chance_is_rarely_taken_for_a_pattern():
    chance = np.random.default_rng(1)
    false_alarms = 0
    for seed in range(60):
        counts = [(8, int(chance.binomial(8, 0.3))) for _ in range(12)]
        false_alarms += failures_depend_on_group(counts, chance=np.random.default_rng(seed)) < 0.05
    assert false_alarms <= 8  # of 60, 3 are expected; more than 8 come once in 200 such tests


def test_a_fault_is_no_failure():
    watch = FailureWatch()
    assert watch.see([group(2, 0, faults=6), group(2, 0), group(2, 0)] * 5) is None


def test_a_failure_that_has_a_value_is_held_to_account():
    told = options(on_failure=-1.0)
    bad = learn_from_group([failed(told=told)] * 4, options=told)
    good = learn_from_group([scored(1.0)] * 4, options=told)
    assert FailureWatch().see([bad] * 4 + [good] * 8) is None


def test_a_few_failures_are_not_judged():
    watch = FailureWatch()
    assert watch.see([group(3, 3), *[group(3, 0)] * 20]) is None
