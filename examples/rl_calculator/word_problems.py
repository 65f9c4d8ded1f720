"""Little word problems. What a problem asks for is one of four calculations with its two numbers.

There are as many problems of each kind, and the four results always differ. So a model that does not read the problem
is right once in four times, whichever calculation it likes best.
"""

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypedDict

from calculator import evaluate


class Problem(TypedDict):
    """One sample of a dataset."""

    question: str
    expression: str
    """What the question asks for. For those who make demonstrations and tests; the agent does not look at it."""
    answer: str


class Pair(NamedTuple):
    """Two numbers of which the first is a multiple of the second, so that every kind can be asked of them."""

    a: int
    b: int


EXPRESSIONS = ("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}")
"""The kinds; in a problem, `a` comes first, and is the larger one."""

_WORDINGS = {
    "{a} + {b}": (
        "{name} has {a} {things} and finds {b} more. How many {things} is that?",
        "There are {a} {things} in a box and {b} in a bag. How many {things} are in both?",
        "{name} buys {a} {things}, and then {b} others. How many {things} are there now?",
    ),
    "{a} - {b}": (
        "{name} has {a} {things} and loses {b}. How many {things} are left?",
        "There were {a} {things} until {name} took {b}. How many {things} remain?",
        "{name} needs {a} {things} and has {b}. How many {things} are missing?",
    ),
    "{a} * {b}": (
        "{name} buys {a} bags with {b} {things} each. How many {things} is that?",
        "There are {a} rows of {b} {things}. How many {things} are in all rows?",
        "For {a} days {name} finds {b} {things} a day. How many {things} is that?",
    ),
    "{a} / {b}": (
        "{name} gives {a} {things} to {b} friends. How many {things} does each get?",
        "There are {a} {things} in {b} equal rows. How many {things} are in a row?",
        "{name} packs {a} {things} into {b} bags. How many {things} are in each bag?",
    ),
}

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
THINGS = ("apples", "books", "coins", "eggs", "pens", "shells")

_PAIRS = [Pair(b * times, b) for b in range(2, 10) for times in range(2, 10) if (b, times) != (2, 2)]
"""Without 4 and 2: 4 - 2 is 4 / 2."""
_HELD_OUT_PAIRS = 15


def split_pairs(seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of numbers to learn from, and others to measure with."""
    pairs = random.Random(seed).sample(_PAIRS, len(_PAIRS))
    return pairs[_HELD_OUT_PAIRS:], pairs[:_HELD_OUT_PAIRS]


def make_problems(pairs: Sequence[Pair], number: int, *, seed: int, without: Collection[Problem] = ()) -> list[Problem]:
    """Make problems, as many of each kind; none occurs twice.

    Args:
        pairs: The numbers to make them of.
        number: How many; a multiple of four.
        seed: Of what is drawn.
        without: Problems that are none of them.

    Raises:
        ValueError: When the number is not a multiple of four.
    """
    if number % len(EXPRESSIONS):
        raise ValueError(f"number is {number}; it is a multiple of {len(EXPRESSIONS)}, the number of kinds")
    lot = random.Random(seed)
    taken = {problem["question"] for problem in without}
    problems: dict[str, Problem] = {}
    while len(problems) < number:
        problem = _make_problem(EXPRESSIONS[len(problems) % len(EXPRESSIONS)], lot.choice(pairs), lot)
        if problem["question"] not in taken:
            problems.setdefault(problem["question"], problem)
    made = list(problems.values())
    lot.shuffle(made)
    return made


def training(seed: int = 0) -> list[Problem]:
    """Return the problems to learn from."""
    return make_problems(split_pairs(seed)[0], 480, seed=seed)


def held_out_problems(seed: int = 0) -> list[Problem]:
    """Return the problems to measure with before and after: of pairs of numbers that are not learned from."""
    return make_problems(split_pairs(seed)[1], 240, seed=seed)


def validation(seed: int = 0) -> list[Problem]:
    """Return the problems to measure with meanwhile: of the same pairs, and none of those."""
    return make_problems(split_pairs(seed)[1], 60, seed=seed + 1, without=held_out_problems(seed))


def make_question(kind: str, a: int, b: int, lot: random.Random) -> str:
    """Return a question of a kind, in one of its wordings."""
    wording = lot.choice(_WORDINGS[kind])
    return wording.format(a=a, b=b, name=lot.choice(NAMES), things=lot.choice(THINGS))


def _make_problem(kind: str, pair: Pair, lot: random.Random) -> Problem:
    expression = kind.format(a=pair.a, b=pair.b)
    return Problem(question=make_question(kind, *pair, lot), expression=expression, answer=evaluate(expression))
