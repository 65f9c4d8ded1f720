"""Stop events, as agentlightning 0.3 names them; every event that a runner takes will do, see `Runner.iter`."""

import multiprocessing
import multiprocessing.synchronize
import threading
from multiprocessing.context import BaseContext
from typing import Protocol


class ExecutionEvent(Protocol):
    """Says when to stop: a `threading.Event`, an event of `multiprocessing`, or anything like them."""

    def set(self) -> None:
        """Ask everybody to stop; twice is as once."""
        ...

    def clear(self) -> None:
        """Take that back."""
        ...

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, or for `timeout` seconds; return whether it is set."""
        ...


ThreadingEvent = threading.Event
"""An event for the threads of one process."""


class MultiprocessingEvent(multiprocessing.synchronize.Event):
    """An event for several processes, which are given it when they are started.

    Args:
        ctx: How processes are started here; None for the default of the platform.
    """

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        super().__init__(ctx=multiprocessing.get_context() if ctx is None else ctx)
