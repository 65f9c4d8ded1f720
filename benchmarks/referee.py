"""What a referee costs and saves an optimiser that looks at its score after every try, on measured prompts.

    python benchmarks/referee.py           # every landscape of landscapes.py, three times
    python benchmarks/referee.py --quick   # every eighth, once

The optimiser edits the best prompt so far, scores the edit on samples, and keeps it where it scores higher. By itself
it scores on the validation samples. It claims a gain as soon as the 95% interval of the paired difference from the
first prompt is above zero. Through the referee it scores on as many training samples. Its best prompt challenges the
one that won last as soon as it is better than that on training samples (sign test at 5%); the last of three challenges
is kept for the end. It claims a gain where one was won. In both cases it ends with the prompt that scores best.

Printed is, for numbers of tries: the share of runs that claim a gain where all templates are equally good, and on the
real landscapes the share that claims one, the regret of the choice, and the calls of the agent. Then how often the
first challenge is won by a candidate that is so much better than a prompt with a reward of 0.45.
"""

import argparse
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from landscapes import N_TRAIN, N_VAL, Answers, Game, Landscape, landscapes
from lightning_referee import level_of, verdict
from lightning_referee.comparison import LOOKS, sign_test

from lightning_core.algorithm.estimates import estimate, paired_difference

TRIES = (5, 10, 20)
CHALLENGES = 3
CORRELATION = 0.3
SEEDS = 3
LEADS = 0.05
GAINS = (0.0, 0.1, 0.2, 0.3)
GAMES = 1000


class End(NamedTuple):
    """How a run ended."""

    template: int
    claims: bool
    calls: int


def naive_claim(first: Sequence[float], best: Sequence[float]) -> bool:
    """Whether the 95% interval of the paired gain lies above zero, which is what one looks at without a correction."""
    difference = paired_difference(first, best)
    return difference is not None and difference.is_gain


def without_differences(landscape: Landscape) -> Landscape:
    """Return a landscape with the accuracy of the first template for every template."""
    number = len(landscape.accuracies)
    return replace(landscape, accuracies=(landscape.accuracies[landscape.first],) * number, first=number // 2)


def game_of(answers: Answers) -> Game:
    """Return a game without a limit of calls, whose chance depends on the answers alone."""
    game = Game(answers, calls=None)
    game.chance = random.Random(f"search/{answers.seed}")
    return game


def alone(game: Game, tries: int) -> End:
    """Climb on the validation samples, and look after each try."""
    first = best = game.landscape.first
    rewards, claims = {first: game.call(first, range(N_VAL))}, False
    for _ in range(tries):
        edit = game.edit(best, game.chance)
        if edit not in rewards:
            rewards[edit] = game.call(edit, range(N_VAL))
        if sum(rewards[edit]) > sum(rewards[best]):
            best = edit
        claims = claims or naive_claim(rewards[first], rewards[best])
    return End(best, claims, game.used)


def wins(pairs: Callable[[int], tuple[list[float], list[float]]], *, n: int, level: float) -> bool:
    """Compare two prompts by their rewards on the first samples, look by look."""
    step = math.ceil(n / LOOKS)
    found = (verdict(*pairs(min(end, n)), of=n, level=level, seed="benchmark") for end in range(step, n + step, step))
    return next(each for each in found if each is not None)


class Hidden:
    """The validation samples, by the rules of lightning-referee."""

    def __init__(self, game: Game) -> None:
        self.best = game.landscape.first
        self.won = 0
        self.challengers = [self.best]
        self._game = game
        self._rewards: dict[int, list[float]] = defaultdict(list)

    def challenge(self, template: int) -> None:
        """Compare a template with the best one, unless it was before, or no challenge is left."""
        if template in self.challengers or len(self.challengers) > CHALLENGES:
            return
        self.challengers.append(template)
        level = level_of(self.won, of=CHALLENGES)
        if wins(lambda end: (self._measure(self.best, end), self._measure(template, end)), n=N_VAL, level=level):
            self.best, self.won = template, self.won + 1

    def _measure(self, template: int, end: int) -> list[float]:
        known = self._rewards[template]
        known += self._game.call(template, range(len(known), end))
        return known[:end]


def refereed(game: Game, tries: int) -> End:
    """Climb on training samples, and submit what leads there."""
    train = range(N_VAL, N_VAL + N_TRAIN)
    hidden, best = Hidden(game), game.landscape.first
    rewards = {best: game.call(best, train)}
    for _ in range(tries):
        edit = game.edit(best, game.chance)
        if edit not in rewards:
            rewards[edit] = game.call(edit, train)
        if sum(rewards[edit]) > sum(rewards[best]):
            best = edit
            pairs = list(zip(rewards[hidden.best], rewards[best], strict=True))
            leads = sign_test(sum(new > old for old, new in pairs), sum(new < old for old, new in pairs)) <= LEADS
            if leads and len(hidden.challengers) < CHALLENGES:
                hidden.challenge(best)
    hidden.challenge(best)
    return End(best, hidden.won > 0, game.used)


def power(gain: float, n: int, challenges: int) -> float:
    """Return how often the first challenge is won by a candidate that is so much better."""
    landscape = Landscape("-", "-", (0.45, 0.45 + gain), ((), ()), first=0)
    played = [Answers(landscape, correlation=CORRELATION, seed=f"power/{gain}/{n}/{game}") for game in range(GAMES)]
    level = level_of(0, of=challenges)
    return statistics.fmean(
        wins(lambda end, of=each: (of.rewards(0)[:end], of.rewards(1)[:end]), n=n, level=level)  # type: ignore[misc]
        for each in played
    )


PLAYERS = {"by itself": alone, "through the referee": refereed}


def play(landscape: Landscape, kind: str, seed: int, tries: int) -> dict[str, End]:
    """Let both play on one landscape."""
    answers = Answers(landscape, correlation=CORRELATION, seed=f"{landscape.task}/{landscape.model}/{kind}/{seed}")
    return {name: play(game_of(answers), tries) for name, play in PLAYERS.items()}


def share(claims: list[float]) -> str:
    """Return a share with its 95% interval."""
    found = estimate(claims)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return f"{found.mean:.1%} ({found.low:.1%}..{found.high:.1%})"


def main() -> None:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(description="Measures what a referee costs and saves an optimiser that peeks.")
    parser.add_argument("--quick", action="store_true", help="every eighth landscape, once")
    every, seeds = (8, 1) if parser.parse_args().quick else (1, SEEDS)
    played = [(landscape, seed) for landscape in landscapes()[::every] for seed in range(seeds)]
    print(f"{len(played)} runs each; the first prompt has a regret of ", end="")
    print(f"{statistics.fmean(max(each.accuracies) - each.accuracies[each.first] for each, _ in played):.3f}")
    print("| tries | | claims a gain where there is none | claims one on real landscapes | regret | calls |")
    print("|---|---|---|---|---|---|")
    for tries in TRIES:
        false: dict[str, list[float]] = defaultdict(list)
        ends: dict[str, list[tuple[Landscape, End]]] = defaultdict(list)
        for landscape, seed in played:
            for name, end in play(without_differences(landscape), "null", seed, tries).items():
                false[name].append(float(end.claims))
            for name, end in play(landscape, "real", seed, tries).items():
                ends[name].append((landscape, end))
        for name, found in ends.items():
            regret = statistics.fmean(max(of.accuracies) - of.accuracies[end.template] for of, end in found)
            calls = statistics.fmean(end.calls for _, end in found)
            claimed = share([float(end.claims) for _, end in found])
            print(f"| {tries} | {name} | {share(false[name])} | {claimed} | {regret:.3f} | {calls:,.0f} |")
    print()
    print(f"| challenges | validation samples | {' | '.join(f'gain {gain}' for gain in GAINS)} |")
    print(f"|---|---|{'---|' * len(GAINS)}")
    for challenges in (CHALLENGES, 1):
        for n in (60, 100, N_VAL + N_TRAIN):
            shares = " | ".join(f"{power(gain, n, challenges):.1%}" for gain in GAINS)
            print(f"| {challenges} | {n} | {shares} |")


if __name__ == "__main__":
    main()
