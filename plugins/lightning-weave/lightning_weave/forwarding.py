"""Calls to Weave's service too, behind the agent's back: it never waits for the service."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any

logger = logging.getLogger(__name__)

MAX_WAITING = 100_000
"""How many requests may wait for the service; more are dropped, and that is logged. The store has all calls."""


class Forwarding:
    """Makes requests one after the other, in a thread of its own.

    Args:
        remote: A client of Weave's service.
        finish: Called at the end, in that thread: sends what the client has kept back.
    """

    def __init__(self, remote: Any, finish: Callable[[Any], None] | None = None) -> None:
        self.remote = remote
        self._finish = finish
        self._waiting: queue.Queue[tuple[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightning-weave", daemon=True)
        # Outside of whatever trace this is: what goes to the service is not part of it.
        Context().run(self._thread.start)

    def send(self, method: str, request: Any) -> None:
        """Make a request sooner or later. Never waits."""
        if self._given_up.is_set():
            return
        try:
            self._waiting.put_nowait((method, request))
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning(
                    "lightning.weave_behind waiting=%d; Weave's service takes less than there is, and what it does "
                    "not take in time is dropped there; the store has all of it",
                    MAX_WAITING,
                )

    def close(self, timeout_seconds: float) -> None:
        """Send what is left, for at most so long.

        What waits here then is given up. The thread ends when the request that is under way does; what the client has
        kept back goes before that.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            self._waiting.put(None, timeout=timeout_seconds)
        except queue.Full:
            pass  # the thread is behind, which is logged below
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._given_up.set()  # the thread sees it with whatever it takes next: there is None, or the queue is full
            logger.warning(
                "lightning.weave_incomplete timeout_seconds=%g; Weave's service did not take all calls in time, the "
                "store has them",
                timeout_seconds,
            )
        if self._dropped:
            logger.warning("lightning.weave_dropped requests=%d", self._dropped)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None and not self._given_up.is_set():
            method, request = item
            self._try(method, getattr(self.remote, method), request)
        if self._finish is not None:
            self._try("flush", self._finish, self.remote)

    def _try(self, what: str, call: Callable[[Any], Any], argument: Any) -> None:
        try:
            call(argument)
        except Exception as exc:
            logger.error("lightning.weave_refused request=%s error=%r; the store has the calls", what, exc)
