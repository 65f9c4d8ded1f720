"""Which samples are used when."""

import json
import random
from collections.abc import Sequence
from typing import Any


def deal(size: int, hand_size: int, hand: int, *, seed: int) -> list[int]:
    """Deal one hand from a shuffled deck of sample indexes.

    The deck is the same for the same seed. The hands follow one another in it, and start over when it is used up, so
    that no sample comes a second time before all others came once.

    Args:
        size: How many samples there are.
        hand_size: How many are wanted; all of them when there are fewer.
        hand: Which hand, from 0.
        seed: How the deck is shuffled.

    Returns:
        Different indexes, from 0.
    """
    deck = random.Random(seed).sample(range(size), size)
    hand_size = min(hand_size, size)
    return [deck[(hand * hand_size + position) % size] for position in range(hand_size)]


def apart(train: Sequence[Any], val: Sequence[Any]) -> list[Any]:
    """Return the training samples that are no validation samples, too. They are compared by what JSON makes of them."""
    taken = {_text(sample) for sample in val}
    return [sample for sample in train if _text(sample) not in taken]


def _text(sample: Any) -> str:
    try:
        return json.dumps(sample, sort_keys=True, default=repr)
    except (TypeError, ValueError):  # keys that JSON cannot sort, or a value that holds itself
        return repr(sample)
