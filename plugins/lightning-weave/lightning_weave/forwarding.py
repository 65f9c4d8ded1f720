"""Calls to Weave's service too, behind the agent's back: it never waits for the service."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import Context
from typing import Any

from lightning_core.concurrency import DaemonExecutor

logger = logging.getLogger(__name__)

MAX_WAITING = 100_000
"""How many requests may wait for the service; more are dropped, and that is logged. The store has all calls."""


class Forwarding:
    """Makes requests one after the other, in a thread of its own.

    Args:
        remote: A client of Weave's service.
        finish: Called at the end, in that thread: sends what the client has kept back.
    """

    def __init__(self, remote: Any, finish: Callable[[Any], None]) -> None:
        self.remote = remote
        self._finish = finish
        self._executor = DaemonExecutor(max_threads=1)
        self._places = threading.Semaphore(MAX_WAITING)
        self._is_behind = False
        self._is_closed = False

    def send(self, method: str, request: Any) -> None:
        """Make a request sooner or later, unless it is closed. Never waits."""
        if self._is_closed:
            return
        if self._places.acquire(blocking=False):
            self._submit(self._make, method, request)
        elif not self._is_behind:
            self._is_behind = True
            logger.warning(
                "lightning.weave_behind waiting=%d; Weave's service takes less than there is, and what it does not "
                "take in time is dropped there; the store has all of it",
                MAX_WAITING,
            )

    def close(self, timeout_seconds: float) -> None:
        """Send what is left, for at most so long; then give up what waits."""
        self._is_closed = True
        ended = self._submit(self._try, "flush", self._finish, self.remote)
        _, late = wait((ended,), timeout_seconds)
        self._executor.shutdown()
        if late:
            logger.warning(
                "lightning.weave_incomplete timeout_seconds=%g; Weave's service did not take all calls in time, the "
                "store has them",
                timeout_seconds,
            )

    def _submit(self, function: Callable[..., None], *arguments: Any) -> "Future[None]":
        # Outside of whatever trace this is: what goes to the service is not part of it.
        return Context().run(self._executor.submit, function, *arguments)

    def _make(self, method: str, request: Any) -> None:
        self._places.release()
        self._try(method, getattr(self.remote, method), request)

    def _try(self, what: str, call: Callable[[Any], Any], argument: Any) -> None:
        try:
            call(argument)
        except Exception as exc:
            logger.error("lightning.weave_refused request=%s error=%r; the store has the calls", what, exc)
