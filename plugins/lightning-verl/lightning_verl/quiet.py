"""What verl says, kept out of a run's output.

verl prints, warns and logs as programs do that have a terminal to themselves. Here it is a part of another program,
whose standard output may be read by a third one.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

logger = logging.getLogger(__name__)

_VARIABLES = {
    "VERL_LOGGING_LEVEL": "WARNING",
    "TQ_LOGGING_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # no report of Ray's use to its makers
}
"""Set unless somebody has: read by verl, TransferQueue, tqdm and Ray when they are imported."""

_NOISY = r"(verl|torchdata|transfer_queue|ray|tensordict)(\..*)?"


@contextmanager
def quiet_thread() -> Iterator[None]:
    """Log what the calling thread prints during the block, at the level of debugging; other threads print as ever."""
    variables = {name: value for name, value in _VARIABLES.items() if name not in os.environ}
    os.environ.update(variables)
    filters = []
    for category in (UserWarning, FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=_NOISY)
        filters.append(warnings.filters[0])
    real, quiet = sys.stdout, _ByThread(sys.stdout, threading.get_ident())
    sys.stdout = quiet
    try:
        yield
    finally:
        if sys.stdout is quiet:
            sys.stdout = real
        # One by one, for others may have changed filters and variables meanwhile.
        for one in filters:
            if one in warnings.filters:
                warnings.filters.remove(one)  # type: ignore[attr-defined]
        for name, value in variables.items():
            if os.environ.get(name) == value:
                del os.environ[name]


class _ByThread:
    """Standard output for all threads but one."""

    def __init__(self, real: TextIO, thread: int) -> None:
        self._real = real
        self._thread = thread
        self._line = ""

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return self._real.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(str.strip, lines):
            logger.debug("lightning_verl.printed %s", line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
