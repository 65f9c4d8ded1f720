"""Waits for what Ray's nodes tell each other a few times in a second."""

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.05


def wait_until(is_so: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Return whether it has come true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
