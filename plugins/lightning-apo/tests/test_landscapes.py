"""The benchmark that plays measured prompts: that it plays them as they were measured, and that all searches play."""

import math
import statistics

import pytest

from benchmarks.landscapes import BUDGETS, SEARCHES, Answers, Choice, Game, Landscape, landscapes, tasks

N = 300
"""Games of 200 samples each."""


def landscape(*accuracies: float) -> Landscape:
    near = tuple(tuple(other for other in range(len(accuracies)) if other != each) for each in range(len(accuracies)))
    return Landscape("task", "model", accuracies, near, first=0)


def test_the_data_are_all_there() -> None:
    models = [len(next(iter(templates.values()))) for templates in tasks().values()]
    assert len(models) == 15
    assert sum(models) == 195
    assert all(0 <= mean <= 1 for texts in tasks().values() for each in texts.values() for mean in each.values())


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_templates_have_their_measured_accuracy_and_share_what_they_find_hard(correlation: float) -> None:
    """Both right: Sheppard's 1/4 + asin(correlation) / 2 pi for two templates of 0.5 (1899, Phil. Trans. A 192)."""
    means, both = [], []
    for seed in range(N):
        answers = Answers(landscape(0.5, 0.5, 0.12, 0.0, 1.0), correlation=correlation, seed=str(seed))
        rewards = [answers.rewards(template) for template in range(5)]
        means.append([statistics.fmean(each) for each in rewards])
        both.append(statistics.fmean(one * other for one, other in zip(rewards[0], rewards[1], strict=True)))
    found = [statistics.fmean(each) for each in zip(*means, strict=True)]
    assert found == pytest.approx([0.5, 0.5, 0.12, 0.0, 1.0], abs=0.01)  # over 4 standard errors
    assert statistics.fmean(both) == pytest.approx(0.25 + math.asin(correlation) / (2 * math.pi), abs=0.01)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("calls", BUDGETS)
def test_each_search_plays_with_the_calls_that_it_has_and_finds_and_proves_what_is_much_better(
    search: str, calls: int
) -> None:
    accuracies = [0.2] * 24
    accuracies[7] = 0.9
    found = []
    for seed in range(3):
        game = Game(Answers(landscape(*accuracies), correlation=0.3, seed=str(seed)), calls=calls)
        found.append(SEARCHES[search](game))
        assert 0.5 * calls <= game.used <= calls + (60 if search == "gepa" else 0)
    assert sum(each == Choice(7, claims=True) for each in found) >= 2


def test_a_game_is_repeatable() -> None:
    def play() -> tuple[Choice, int]:
        game = Game(Answers(landscapes(["ruin_names"])[0], correlation=0.3, seed="1"), calls=200)
        return SEARCHES["apo"](game), game.used

    assert play() == play()
