"""Which samples are used when."""

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

from lightning_core.types import sample_key


def seed_of(*key: str | int) -> int:
    """Derive a seed from what it is for.

    The same key gives the same seed in every process and on every machine.

    Returns:
        A number of 31 bits, which every model endpoint takes.
    """
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 33


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
    """Return the training samples that are not also validation samples. They are compared by their content."""
    taken = {sample_key(sample) for sample in val}
    return [sample for sample in train if sample_key(sample) not in taken]
