"""The benchmark that plays measured prompts: that it plays them as they were measured, and that all searches play."""

import math
import random
import statistics

import pytest

from benchmarks.landscapes import (
    BUDGETS,
    KEEPS,
    SEARCHES,
    Answers,
    Choice,
    Game,
    Landscape,
    NothingToFind,
    Part,
    landscapes,
    play_part,
    report,
    tasks,
)

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


def test_an_edit_is_nearer_in_text_than_the_templates_that_it_is_not_drawn_from() -> None:
    found = landscapes(["ruin_names"])[0]
    texts = list(tasks()["ruin_names"])
    assert len(found.near) == len(texts)
    assert all(len(set(near)) == 20 and number not in near for number, near in enumerate(found.near))
    # Shared words are counted here in another way than the benchmark does it.
    words = [set(text.lower().split()) for text in texts]
    near, far = [], []
    for number, own in enumerate(words):
        for other in range(len(words)):
            if other != number:
                share = len(own & words[other]) / len(own | words[other])
                (near if other in found.near[number] else far).append(share)
    assert statistics.fmean(near) > 2 * statistics.fmean(far)


def test_where_nothing_is_to_be_found_an_edit_of_edits_is_as_good_and_keeps_most_answers() -> None:
    """With answers that are otherwise independent, two of 0.5 agree on `KEEPS` and half of the rest."""
    means, agree = [], []
    for seed in range(N):
        answers = NothingToFind(landscape(0.5, 0.9), correlation=0.0, seed=str(seed))
        chance = random.Random(seed)
        child = answers.edit(answers.edit(0, chance), chance)
        grandchild = answers.edit(child, chance)
        means.append(statistics.fmean(answers.rewards(grandchild)))
        both = zip(answers.rewards(child), answers.rewards(grandchild), strict=True)
        agree.append(statistics.fmean(one == other for one, other in both))
    assert statistics.fmean(means) == pytest.approx(0.5, abs=0.01)
    assert statistics.fmean(agree) == pytest.approx(KEEPS + (1 - KEEPS) / 2, abs=0.01)


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


def test_other_searches_end_as_apo_does() -> None:
    """On 2 x 20 of 200 calls: the first stays where the other is not better on all samples of both."""
    game = Game(Answers(landscape(0.0, 1.0), correlation=0.0, seed="1"), calls=200)
    assert (game.calls, game.n_val) == (160, 80)
    assert game.end(1, [0.0] * 5, [1.0] * 5) == Choice(1, claims=True)
    assert game.end(1, [1.0] * 30, [0.0] * 30) == Choice(0, claims=False)
    assert game.used == 80


def test_a_tiny_form_prints_all_tables(capsys: pytest.CaptureFixture[str]) -> None:
    report(play_part(Part("disambiguation_qa", [200], ["apo", "halving"], every=8)))
    printed = capsys.readouterr().out
    assert printed.count("| 200 | halving | 0.") == 2
    assert "| apo, 30 rounds | " in printed
