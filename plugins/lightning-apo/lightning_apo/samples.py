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


def shuffled(size: int, *, seed: int) -> list[int]:
    """Return the indexes of so many samples, in an order that the seed decides."""
    return random.Random(seed).sample(range(size), size)


def apart(train: Sequence[Any], val: Sequence[Any]) -> list[Any]:
    """Return the training samples that are not also validation samples. They are compared by their content."""
    taken = {sample_key(sample) for sample in val}
    return [sample for sample in train if sample_key(sample) not in taken]
