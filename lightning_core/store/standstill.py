"""A process that stood still finds everybody late: who is alive gets a moment to say so."""

import threading
from collections.abc import Hashable

MAX_GRACE_SECONDS = 5.0
"""The longest moment."""


class Standstill:
    """Notices that this process was stopped (a signal, a machine that slept, a blocked loop), and bears with it.

    Workers in a process that stood still could not send their heartbeats, those elsewhere could not deliver them. When
    it goes on, all leases may be overdue at once. Then nobody is lost to silence for a grace: a third of a lease, at
    most five seconds. Whoever gives no sign of life in it is lost at its end, however late that comes: one standstill
    gives one grace.

    It is noticed in two ways: everybody who planned to look at the deadlines is late; or, where nobody planned to, a
    worker that is late itself is the first to call for the length of a lease.

    Args:
        lease_seconds: How long a worker that sends heartbeats may be silent.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._grace_seconds = min(lease_seconds / 3, MAX_GRACE_SECONDS)
        self._bearable_seconds = self._grace_seconds / 10
        """How late a look may be without meaning anything."""
        self._lock = threading.Lock()
        self._plans: dict[Hashable, float] = {}
        self._looked_at = float("-inf")
        self._grace_until = float("-inf")

    def plan(self, who: Hashable, at: float | None) -> float | None:
        """Note when somebody is going to look next.

        Args:
            who: Whoever looks.
            at: When something is due, in seconds since the epoch; None for nothing.

        Returns:
            When to look: not before the end of a grace.
        """
        with self._lock:
            if at is None:
                self._plans.pop(who, None)
                return None
            self._plans[who] = max(at, self._grace_until)
            return self._plans[who]

    def looked(self, now: float) -> float:
        """Note a look at the deadlines.

        Returns:
            When the one before was, in seconds since the epoch; minus infinity for the first.
        """
        before, self._looked_at = self._looked_at, now
        return before

    def bears(self, now: float, *, looked_before: float, late_sign: bool) -> bool:
        """Whether nobody is lost to silence now.

        Args:
            now: The time.
            looked_before: When somebody last looked at the deadlines.
            late_sign: Whether whoever looks is a worker that is overdue, and alive.
        """
        with self._lock:
            if now < self._grace_until:
                return True
            if self._plans:
                planned = max(self._plans.values())
                stood_still = self._grace_until < planned < now - self._bearable_seconds
            else:
                stood_still = late_sign and self._lease_seconds <= now - looked_before < float("inf")
            if stood_still:
                self._grace_until = now + self._grace_seconds
            return stood_still
