"""A process that began, or stood still, finds everybody late: every lease gets one more term."""

import threading
from collections.abc import Hashable

from lightning_core.store.clock import Clock

_SET_SECONDS = 1.0
"""By how much the wall clock has to jump to have been set. It is slewed by less between two looks."""


class Standstill:
    """Knows since when workers can have given signs of life; shared by all views of a store.

    Workers could not deliver their heartbeats to a process that was not there or was stopped (a signal, a machine that
    slept, a blocked loop). When it goes on, all leases may be overdue at once. So nobody is lost to silence before
    that silence has lasted for a whole term that this process has seen.

    That it stood still is noticed in two ways: everybody who planned to look at the deadlines is late; or, where
    nobody planned to, a worker that is late itself is the first to call for the length of a lease.

    Time is measured by the monotonic clock. Where the wall clock is set, the times of what runs are moved with it.

    Args:
        clock: Where the time comes from.
        lease_seconds: How long a worker that sends heartbeats may be silent.
    """

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._bearable_seconds = lease_seconds / 60
        """How late a look may be without meaning anything."""
        self._lock = threading.Lock()
        self._plans: dict[Hashable, float] = {}
        self._began = self._looked_at = clock.monotonic()
        self._wall_offset = clock.now() - clock.monotonic()
        self._set_by = 0.0
        self._moved_by: dict[str, float] = {}

    def plan(self, who: Hashable, seconds: float | None) -> None:
        """Note in how many seconds somebody is going to look next; None for not at all."""
        self.notice()
        with self._lock:
            if seconds is None:
                self._plans.pop(who, None)
            else:
                self._plans[who] = self._clock.monotonic() + seconds

    def notice(self) -> None:
        """Look at the clocks: has this process stood still, or was the wall clock set?"""
        now = self._clock.monotonic()
        offset = self._clock.now() - now
        if abs(offset - self._wall_offset) <= _SET_SECONDS and not self._plans:
            self._wall_offset = offset  # nearly every time, and much faster without the lock
            return
        with self._lock:
            jump, self._wall_offset = offset - self._wall_offset, offset
            if abs(jump) > _SET_SECONDS:
                self._set_by += jump
                self._begin(now)
            elif self._plans and max(self._plans.values()) < now - self._bearable_seconds:
                self._begin(now)

    def looked(self, *, late_sign: bool) -> None:
        """Note that the deadlines have been looked at.

        Args:
            late_sign: Whether whoever looked is a worker that is overdue, and alive.
        """
        now = self._clock.monotonic()
        if late_sign:
            with self._lock:
                if not self._plans and now - self._looked_at >= self._lease_seconds:
                    self._begin(now)
        self._looked_at = now

    def began(self) -> float:
        """Return since when workers can have given signs of life, in seconds since the epoch."""
        return self._began + self._wall_offset

    def to_move(self, run_id: str) -> float | None:
        """Return by how many seconds the times of a run have to be moved, and take it as done.

        None when nothing has to be done; 0 for a run that this process has not seen before.
        """
        if self._moved_by.get(run_id) == self._set_by:
            return None
        with self._lock:
            before = self._moved_by.get(run_id)
            if before == self._set_by:
                return None
            self._moved_by[run_id] = self._set_by
            return self._set_by - (before or 0.0)

    def _begin(self, now: float) -> None:
        self._began = now
        self._plans.clear()
