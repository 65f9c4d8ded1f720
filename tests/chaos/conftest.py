"""A folder and its processes, which are killed at random moments, and what is checked when all is over.

`AGL_CHAOS_SEED` repeats a test's moments, as far as the machine repeats itself. `AGL_CHAOS_ROLLOUTS` makes it longer:
the number of kills grows with it.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.playground import Playground


@pytest.fixture
def seed() -> int:
    """What all random choices of a test come from; shown when it fails."""
    given = os.environ.get("AGL_CHAOS_SEED")
    seed = random.SystemRandom().randrange(2**32) if given is None else int(given)
    print(f"AGL_CHAOS_SEED={seed}")
    return seed


@pytest.fixture
def playground(tmp_path: Path, seed: int) -> Iterator[Playground]:
    playground = Playground(tmp_path, random.Random(seed))
    try:
        yield playground
    finally:
        playground.kill_all()
        playground.show_logs()  # of a test that fails
