"""Small functions to be written: how they are asked for, what a programmer writes, and how it is checked."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Function:
    """A function that an agent is asked to write."""

    description: str
    right: str
    careless: str
    """What comes of reading half of the description."""
    checks: dict[str, Any]
    """Calls, and what they give. The first two stand in the description, the agent does not see the others."""


def _function(description: str, *, right: str, careless: str, checks: dict[str, Any]) -> Function:
    shown = " ".join(f"{call} is {value!r}." for call, value in list(checks.items())[:2])
    head = description.partition(" ")[0]
    body = "\n    ".join
    return Function(
        description=f"Write the Python function {description} {shown}",
        right=f"def {head}:\n    {body(right.splitlines())}\n",
        careless=f"def {head}:\n    {body(careless.splitlines())}\n",
        checks=checks,
    )


FUNCTIONS = {
    function.description.split()[4].partition("(")[0]: function
    for function in (
        _function(
            "average(numbers) for the mean; without numbers it is None.",
            right="return sum(numbers) / len(numbers) if numbers else None",
            careless="return sum(numbers) / max(len(numbers), 1)",
            checks={"average([1, 2])": 1.5, "average([])": None, "average([3])": 3.0},
        ),
        _function(
            "clamp(value,low,high) for the nearest number between two limits, which may come in any order.",
            right="return max(min(low, high), min(value, max(low, high)))",
            careless="return max(low, min(value, high))",
            checks={"clamp(5, 1, 3)": 3, "clamp(5, 9, 7)": 7, "clamp(8, 9, 7)": 8, "clamp(0, 1, 3)": 1},
        ),
        _function(
            "initials(name) for the capital first letters of all words, however many spaces are between them.",
            right='return "".join(word[0].upper() for word in name.split())',
            careless='return "".join(word[:1] for word in name.split(" "))',
            checks={"initials('Ada Lovelace')": "AL", "initials('grace  hopper')": "GH", "initials('')": ""},
        ),
        _function(
            "is_leap(year) for whether a year of the Gregorian calendar has 366 days.",
            right="return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
            careless="return year % 4 == 0",
            checks={"is_leap(2024)": True, "is_leap(1900)": False, "is_leap(2000)": True, "is_leap(2023)": False},
        ),
        _function(
            "count_vowels(text) for how many of a, e, i, o and u there are, small or capital.",
            right='return sum(letter in "aeiou" for letter in text.lower())',
            careless='return sum(letter in "aeiou" for letter in text)',
            checks={"count_vowels('banana')": 3, "count_vowels('Oboe')": 3, "count_vowels('')": 0},
        ),
        _function(
            "unique(items) for a list of the items, each once, in the order in which they came.",
            right="return list(dict.fromkeys(items))",
            careless="return sorted(set(items))",
            checks={"unique([1, 2, 1])": [1, 2], "unique([3, 1, 3])": [3, 1], "unique([])": []},
        ),
        _function(
            "second_largest(numbers) for the largest number below the maximum; without one it is None.",
            right="below = sorted(set(numbers))[:-1]\nreturn below[-1] if below else None",
            careless="return sorted(numbers)[-2] if len(numbers) > 1 else None",
            checks={"second_largest([1, 2, 3])": 2, "second_largest([5, 5, 4])": 4, "second_largest([7, 7])": None},
        ),
        _function(
            "is_palindrome(text) for whether it reads the same backwards, leaving out spaces and the case of letters.",
            right='letters = text.replace(" ", "").lower()\nreturn letters == letters[::-1]',
            careless="return text == text[::-1]",
            checks={"is_palindrome('level')": True, "is_palindrome('Never even')": True, "is_palindrome('ab')": False},
        ),
        _function(
            "digit_sum(number) for the sum of its decimal digits, whatever its sign.",
            right="return sum(int(digit) for digit in str(abs(number)))",
            careless="return sum(int(digit) for digit in str(number).lstrip('-')) * (1 if number > 0 else -1)",
            checks={"digit_sum(123)": 6, "digit_sum(-45)": 9, "digit_sum(0)": 0},
        ),
        _function(
            "overlap(first,second) for whether two intervals share more than one point.",
            right="return max(first[0], second[0]) < min(first[1], second[1])",
            careless="return max(first[0], second[0]) <= min(first[1], second[1])",
            checks={
                "overlap((1, 3), (2, 4))": True,
                "overlap((1, 2), (2, 3))": False,
                "overlap((5, 6), (1, 2))": False,
            },
        ),
        _function(
            "to_minutes(time) for the minutes in hours:minutes, or in minutes alone.",
            right='hours, _, minutes = time.rpartition(":")\nreturn int(hours or 0) * 60 + int(minutes)',
            careless='hours, _, minutes = time.partition(":")\nreturn int(hours or 0) * 60 + int(minutes or 0)',
            checks={"to_minutes('1:30')": 90, "to_minutes('45')": 45, "to_minutes('0:05')": 5},
        ),
        _function(
            "chunks(items,size) for a list of lists of so many items; the last one may be shorter.",
            right="return [items[start : start + size] for start in range(0, len(items), size)]",
            careless="return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]",
            checks={
                "chunks([1, 2, 3, 4], 2)": [[1, 2], [3, 4]],
                "chunks([1, 2, 3], 2)": [[1, 2], [3]],
                "chunks([], 2)": [],
            },
        ),
        _function(
            "says_yes(text) for whether it is yes, true or 1, with any case and spaces around.",
            right='return text.strip().lower() in ("yes", "true", "1")',
            careless='return text in ("yes", "true", "1")',
            checks={
                "says_yes('yes')": True,
                "says_yes(' True ')": True,
                "says_yes('no')": False,
                "says_yes('1')": True,
            },
        ),
        _function(
            "longest(words) for the longest word, the first of several; without words it is None.",
            right="return max(words, key=len) if words else None",
            careless="return sorted(words, key=len)[-1] if words else None",
            checks={"longest(['a', 'bc'])": "bc", "longest(['ab', 'cd'])": "ab", "longest([])": None},
        ),
        _function(
            "flatten(items) for one list; what is not a list in it stays as it is.",
            right="return [part for item in items for part in (item if isinstance(item, list) else [item])]",
            careless="return [part for item in items if isinstance(item, list) for part in item]",
            checks={"flatten([[1], [2, 3]])": [1, 2, 3], "flatten([[1], 2])": [1, 2], "flatten([])": []},
        ),
        _function(
            "last_word(text) for the last word without the full stop behind it; without words it is ''.",
            right='words = text.split()\nreturn words[-1].rstrip(".") if words else ""',
            careless='words = text.split()\nreturn words[-1] if words else ""',
            checks={"last_word('a b')": "b", "last_word('It works.')": "works", "last_word('')": ""},
        ),
    )
}

_TASKS = [{"function": name, "description": function.description} for name, function in FUNCTIONS.items()]
TRAIN, VAL, TEST = _TASKS[:4], _TASKS[4:10], _TASKS[10:]
