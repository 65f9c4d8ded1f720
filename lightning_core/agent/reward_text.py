"""A reward that comes from outside: as a text, or as a value of JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

from lightning_core.errors import InvalidResult

Reward = float | dict[str, float]

WANTED = 'a number or a JSON object of numbers, such as 0.5 or {"right": 1, "short": 0.5}'


def reward_of_text(text: str, where: str) -> Reward:
    """Read a reward from a text.

    Args:
        text: A number, or JSON.
        where: Where it stands, for the message.

    Raises:
        InvalidResult: When it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidResult(f"{where} is no reward: {_shown(text.strip())}; it is {WANTED}") from exc
    return reward_of_value(value, where)


def reward_of_value(value: Any, where: str) -> Reward:
    """Read a reward from a value of JSON; one under the name `reward` alone is that.

    Raises:
        InvalidResult: When it is none.
    """
    if isinstance(value, Mapping) and value.keys() == {"reward"}:
        value = value["reward"]
    if _is_number(value):
        return float(value)
    if isinstance(value, Mapping) and value and all(map(_is_number, value.values())):
        return {str(name): float(number) for name, number in value.items()}
    raise InvalidResult(f"{where} is no reward: {_shown(json.dumps(value, default=str))}; it is {WANTED}")


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer that is larger than any float
        return False


def _shown(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."
