"""The status machine of rollouts and attempts: pure functions from a record to the next one.

A function that makes a change takes a record, and mostly the time, in seconds since the epoch; it returns the record
that follows, or the same object where nothing changes. None of them does I/O, reads a clock or changes what it was
given.

A rollout goes `queuing -> preparing -> running -> succeeded | failed | cancelled`, and through `requeuing` when a
retry is due. An attempt goes `preparing -> running -> succeeded | failed | timeout | unresponsive`. What is terminal
stays terminal, except that an `unresponsive` attempt is revived by a new span until its rollout has ended.

An attempt is given up when its rollout ended, when a newer attempt exists, when the rollout was queued again while
it ran, or when a fault ended it. From then on it never changes the rollout's outcome.

A failure is the agent's: it raised, or ran out of its time; `retry_condition` and `max_attempts` govern it. A fault is
the infrastructure's: the worker, the store or the model could not be reached. It queues the rollout again without
using up an attempt, at most `MAX_FAULTS` times. A worker that sends heartbeats holds a lease on its attempt; when it
gives no sign of life for the length of the lease, that is a fault.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lightning_core.errors import InvalidTransition, NotFound
from lightning_core.types import (
    Attempt,
    AttemptStatus,
    Rollout,
    RolloutStatus,
    Worker,
)
from lightning_core.types.frozen import construct, evolve

QUEUED: frozenset[RolloutStatus] = frozenset({"queuing", "requeuing"})
"""A rollout in one of these waits for a claim."""

ENDED: frozenset[RolloutStatus] = frozenset({"succeeded", "failed", "cancelled"})
"""A rollout in one of these stays there."""

ACTIVE_ATTEMPT: frozenset[AttemptStatus] = frozenset({"preparing", "running"})
"""An attempt in one of these is being executed."""

FINAL_ATTEMPT: frozenset[AttemptStatus] = frozenset({"succeeded", "failed", "timeout"})
"""An attempt in one of these stays there."""

RUN_STOPPED = "its runner was stopped"
RUN_KILLED = "the process that ran it was killed"
"""The faults of attempts whose run was ended, by Ctrl-C or a kill, and went on later."""

MAX_FAULTS = 3
"""How many faults a rollout survives."""

MAX_REQUESTS = 8
"""How many requests a record itself remembers; the store keeps older ones beside it, for a day."""


_ATTEMPT_FIELDS = set(Attempt.model_fields)


class Deadline(NamedTuple):
    """When an attempt has to be ended if nothing happens before, and as what."""

    at: float
    """Seconds since the epoch."""
    status: AttemptStatus
    is_fault: bool = False
    """Whether the attempt's worker is to blame rather than the agent."""


class Request(NamedTuple):
    """A request that a record remembers."""

    request_id: str
    """The id that a repeat of the request has, too."""
    attempt_id: str | None = None
    """The attempt that it was about, which `"latest"` may not name any more; None for the rollout itself."""
    digest: str = ""
    """Stands for its arguments; empty where they cannot be compared."""


class RolloutRecord(NamedTuple):
    """A rollout with all of its attempts: what a store keeps, and changes, as one.

    The models inside are treated as frozen: a change makes new ones.
    """

    run_id: str
    rollout: Rollout
    attempts: tuple[Attempt, ...] = ()
    revision: int = 0
    """Counts the writes, from 0; a write is refused when there was another one since."""
    lease_seconds: float | None = None
    """How long the newest attempt's worker may be silent; None for a worker that sends no heartbeats."""
    faults: tuple[str, ...] = ()
    """The attempts that a fault ended."""
    requests: tuple[Request, ...] = ()
    """The newest requests that changed it."""

    def request(self, request_id: str | None) -> Request | None:
        """Return the request of this id; None where the record does not remember one."""
        for request in self.requests:
            if request.request_id == request_id:
                return request
        return None

    @property
    def latest(self) -> Attempt | None:
        """The newest attempt, None before the first claim."""
        return self.attempts[-1] if self.attempts else None

    def attempt(self, attempt_id: str) -> Attempt:
        """Return the attempt of this id; `"latest"` is the newest one.

        Raises:
            NotFound: When the rollout has no such attempt.
        """
        if attempt_id == "latest" and self.attempts:
            return self.attempts[-1]
        for attempt in reversed(self.attempts):
            if attempt.attempt_id == attempt_id:
                return attempt
        known = ", ".join(attempt.attempt_id for attempt in self.attempts) or "none yet"
        raise NotFound(f"rollout {self.rollout.rollout_id} has no attempt {attempt_id!r}; it has {known}")


def given_up(record: RolloutRecord, attempt: Attempt) -> bool:
    """Whether this attempt can no longer change the rollout's outcome."""
    latest, status = record.latest, record.rollout.status
    if status in ENDED or latest is None or latest.attempt_id != attempt.attempt_id:
        return True
    return attempt.attempt_id in record.faults or (status in QUEUED and attempt.status in ACTIVE_ATTEMPT)


def has_ended(record: RolloutRecord, attempt: Attempt) -> bool:
    """Whether what this attempt reports comes too late; an `unresponsive` attempt can still be revived."""
    return attempt.status in FINAL_ATTEMPT or given_up(record, attempt)


def deadline(record: RolloutRecord, *, heard_since: float = -math.inf) -> Deadline | None:
    """Return when the newest attempt has to be ended; None while no attempt runs, or without a limit.

    Args:
        record: The record.
        heard_since: Since when signs of life can have been heard; silence before does not count.
    """
    attempt, config = record.latest, record.rollout.config
    if record.lease_seconds is None and config.timeout_seconds is None and config.unresponsive_seconds is None:
        return None
    if attempt is None or attempt.status not in ACTIVE_ATTEMPT or given_up(record, attempt):
        return None
    last_sign = max(_last_sign(attempt), heard_since)
    limits: list[Deadline] = []
    if config.timeout_seconds is not None:
        limits.append(Deadline(attempt.start_time + config.timeout_seconds, "timeout"))
    if config.unresponsive_seconds is not None:
        limits.append(Deadline(last_sign + config.unresponsive_seconds, "unresponsive"))
    if record.lease_seconds is not None:
        limits.append(Deadline(last_sign + record.lease_seconds, "unresponsive", is_fault=True))
    return min(limits, default=None)


def expire(record: RolloutRecord, now: float, *, heard_since: float = -math.inf) -> RolloutRecord:
    """End the newest attempt if its deadline has come."""
    due = deadline(record, heard_since=heard_since)
    if due is None or now < due.at:
        return record
    if due.is_fault:
        return fault(
            record, now, "latest", f"its worker gave no sign of life for {record.lease_seconds:g} s", due.status
        )
    return set_attempt_status(record, now, "latest", due.status)


def fault(
    record: RolloutRecord, now: float, attempt_id: str, reason: str, status: AttemptStatus = "failed"
) -> RolloutRecord:
    """End an attempt for a reason that is not the agent's, and queue its rollout again.

    The attempt keeps the reason in its metadata, under `fault`. The rollout fails when it had `MAX_FAULTS` before; then
    that attempt says under `given_up` what has happened each time, and on which worker. A second
    fault of the same attempt is one effect; so is one of an attempt that was given up.

    Args:
        record: What to change.
        now: The time.
        attempt_id: The attempt; `"latest"` for the newest one.
        reason: What happened, in a few words.
        status: What the attempt becomes.

    Raises:
        NotFound: When the rollout has no such attempt.
        InvalidTransition: When the attempt has ended by itself.
    """
    attempt = record.attempt(attempt_id)
    ended_before = attempt.status in FINAL_ATTEMPT
    if attempt.attempt_id in record.faults or (ended_before and "fault" in (attempt.metadata or {})):
        return record
    if ended_before:
        raise InvalidTransition(
            f"attempt {attempt.attempt_id} of rollout {attempt.rollout_id} is {attempt.status!r}; "
            "a fault cannot end it any more"
        )
    lost = given_up(record, attempt)
    metadata = {**(attempt.metadata or {}), "fault": reason}
    changed = _with_attempt(record, evolve(attempt, status=status, end_time=now, metadata=metadata))
    if lost:
        return changed
    changed = changed._replace(faults=(*record.faults, attempt.attempt_id))
    if len(record.faults) < MAX_FAULTS:
        return _with_status(changed, now, "requeuing")
    story = evolve(changed.attempt(attempt.attempt_id), metadata={**metadata, "given_up": _story_of_faults(changed)})
    return _with_attempt(changed, story, _rollout_as(changed.rollout, now, "failed"))


def begin_attempt(
    record: RolloutRecord,
    now: float,
    *,
    attempt_id: str,
    worker_id: str | None,
    lease_seconds: float | None = None,
) -> RolloutRecord:
    """Begin another attempt, queued or not; an attempt that still runs is given up.

    Raises:
        InvalidTransition: When the rollout has ended.
    """
    if record.rollout.status in ENDED:
        raise InvalidTransition(
            f"rollout {record.rollout.rollout_id} has ended ({record.rollout.status!r}); enqueue a new one instead"
        )
    fields: dict[str, Any] = {
        "rollout_id": record.rollout.rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": len(record.attempts) + 1,
        "start_time": now,
        "end_time": None,
        "status": "preparing",
        "worker_id": worker_id,
        "last_heartbeat_time": None,
        "metadata": None,
    }
    attempts = (*record.attempts, construct(Attempt, fields, _ATTEMPT_FIELDS))
    rollout = evolve(record.rollout, status="preparing")
    return RolloutRecord(
        record.run_id, rollout, attempts, record.revision, lease_seconds, record.faults, record.requests
    )


def span_arrived(record: RolloutRecord, now: float, attempt_id: str) -> RolloutRecord:
    """Note that an attempt recorded something: it runs, or runs again.

    An older attempt than the newest changes itself only. Nothing changes for an attempt that has ended, that a fault
    ended, or whose rollout has ended or was queued again while it ran.

    Raises:
        NotFound: When the rollout has no such attempt.
    """
    attempt = record.attempt(attempt_id)
    is_latest = attempt is record.latest
    if attempt.status in FINAL_ATTEMPT or record.rollout.status in ENDED or attempt.attempt_id in record.faults:
        return record
    if is_latest and given_up(record, attempt):
        return record
    alive = evolve(attempt, status="running", end_time=None, last_heartbeat_time=now)
    return _with_attempt(record, alive, _rollout_as(record.rollout, now, "running") if is_latest else None)


def heartbeat(record: RolloutRecord, now: float, attempt_id: str, lease_seconds: float | None = None) -> RolloutRecord:
    """Note that the worker of an attempt was alive then, and has to say so again within its lease.

    One from before the attempt began changes nothing, and none makes the last sign of life earlier than it was.

    Raises:
        NotFound: When the rollout has no such attempt.
    """
    attempt = record.attempt(attempt_id)
    if given_up(record, attempt) or attempt.status not in ACTIVE_ATTEMPT or now < attempt.start_time:
        return record
    alive = _with_attempt(record, evolve(attempt, last_heartbeat_time=max(now, _last_sign(attempt))))
    return alive if lease_seconds is None else alive._replace(lease_seconds=lease_seconds)


def alive_at(record: RolloutRecord, now: float, attempt_id: str, at: float) -> RolloutRecord:
    """Record when an attempt was alive, as its worker says.

    What would be in the future is now, and none makes the last sign of life earlier than it was.

    Raises:
        NotFound: When the rollout has no such attempt.
    """
    attempt = record.attempt(attempt_id)
    return _with_attempt(record, evolve(attempt, last_heartbeat_time=max(min(at, now), _last_sign(attempt))))


def move_times(record: RolloutRecord, now: float, by: float) -> RolloutRecord:
    """Move the times of an attempt that is being executed, so that its limits last as long as they would have.

    Args:
        record: What to change.
        now: The time; what would be later is now.
        by: By how many seconds the wall clock was set; negative for back.
    """
    attempt = record.latest
    if attempt is None or attempt.status not in ACTIVE_ATTEMPT:
        return record
    began, sign = min(now, attempt.start_time + by), attempt.last_heartbeat_time
    sign = None if sign is None else min(now, sign + by)
    if (began, sign) == (attempt.start_time, attempt.last_heartbeat_time):
        return record
    return _with_attempt(record, evolve(attempt, start_time=began, last_heartbeat_time=sign))


def set_attempt_status(record: RolloutRecord, now: float, attempt_id: str, status: AttemptStatus) -> RolloutRecord:
    """Move an attempt, and its rollout with it unless the attempt was given up.

    The same status twice is one effect. Becoming `running` is a sign of life, as a span is.

    Raises:
        NotFound: When the rollout has no such attempt.
        InvalidTransition: When the attempt has ended otherwise, or would go back.
    """
    attempt = record.attempt(attempt_id)
    if attempt.status == status:
        return record
    lost = given_up(record, attempt)
    if attempt.status in FINAL_ATTEMPT or (attempt.status == "unresponsive" and lost) or status == "preparing":
        raise InvalidTransition(
            f"attempt {attempt.attempt_id} of rollout {attempt.rollout_id} ({record.rollout.status!r}) is "
            f"{attempt.status!r}; it cannot become {status!r}"
        )
    fields: dict[str, Any]
    if status == "running":
        fields = {"status": status, "end_time": None, "last_heartbeat_time": now}
    else:
        fields = {"status": status, "end_time": now}
    rollout = record.rollout if lost else _rollout_as(record.rollout, now, after_attempt(record, status))
    return _with_attempt(record, evolve(attempt, **fields), rollout)


def set_rollout_status(record: RolloutRecord, now: float, status: RolloutStatus) -> RolloutRecord:
    """Move a rollout because a caller says so, rather than its attempt.

    The same status twice is one effect.

    Raises:
        InvalidTransition: When the rollout has ended.
    """
    rollout = record.rollout
    if rollout.status == status:
        return record
    if rollout.status in ENDED:
        raise InvalidTransition(
            f"rollout {rollout.rollout_id} has ended ({rollout.status!r}); it cannot become {status!r}"
        )
    return _with_status(record, now, status)


def after_attempt(record: RolloutRecord, status: AttemptStatus) -> RolloutStatus:
    """Return what the rollout becomes when its newest attempt becomes `status`."""
    if status in ("preparing", "running", "succeeded"):
        return status
    config = record.rollout.config
    if status in config.retry_condition and len(record.attempts) - len(record.faults) < config.max_attempts:
        return "requeuing"
    return "failed"


def worker_after(worker: Worker, attempt: Attempt, now: float) -> Worker:
    """Return the worker's record after its attempt took the status that it has.

    An attempt that it does not work on any more changes nothing. One that was handed to another worker releases it.
    """
    works_on_it = worker.current_attempt_id == attempt.attempt_id
    is_own = attempt.worker_id == worker.worker_id
    if is_own and attempt.status in ACTIVE_ATTEMPT:
        if works_on_it:
            return worker
        return evolve(
            worker,
            status="busy",
            last_busy_time=now,
            current_rollout_id=attempt.rollout_id,
            current_attempt_id=attempt.attempt_id,
        )
    if not works_on_it:
        return worker
    if is_own and attempt.status in ("succeeded", "failed"):
        return evolve(worker, status="idle", last_idle_time=now, current_rollout_id=None, current_attempt_id=None)
    return evolve(worker, status="unknown", current_rollout_id=None, current_attempt_id=None)


def with_fields(record: RolloutRecord, fields: Mapping[str, Any]) -> RolloutRecord:
    """Replace fields of the rollout that have nothing to do with its status."""
    return record._replace(rollout=evolve(record.rollout, **fields))


def with_attempt_fields(record: RolloutRecord, attempt_id: str, fields: Mapping[str, Any]) -> RolloutRecord:
    """Replace fields of an attempt that have nothing to do with its status."""
    return _with_attempt(record, evolve(record.attempt(attempt_id), **fields))


def hand_over(record: RolloutRecord, attempt_id: str, worker_id: str | None, *, keeps_lease: bool) -> RolloutRecord:
    """Give an attempt to another worker, or to none.

    Args:
        record: What to change.
        attempt_id: The attempt; `"latest"` for the newest one.
        worker_id: Who executes it from now on.
        keeps_lease: Whether that worker sends heartbeats; without them, it cannot keep a lease that there is.

    Raises:
        NotFound: When the rollout has no such attempt.
    """
    attempt = record.attempt(attempt_id)
    if attempt.worker_id == worker_id:
        return record
    changed = _with_attempt(record, evolve(attempt, worker_id=worker_id))
    return changed if keeps_lease or attempt is not record.latest else changed._replace(lease_seconds=None)


def with_request(record: RolloutRecord, request: Request, *, most: int | None = None) -> RolloutRecord:
    """Remember a request that changed the record, and forget the oldest ones beyond `most`, None for no limit."""
    requests = (*record.requests, request)
    return record._replace(requests=requests if most is None else requests[-most:])


def _story_of_faults(record: RolloutRecord) -> str:
    """Say in one line what has befallen a rollout that is given up for its faults."""
    attempts = [record.attempt(attempt_id) for attempt_id in record.faults]
    of_cause: dict[str, list[str]] = {}
    for each in attempts:
        place = f"attempt {each.sequence_id} on {each.worker_id or 'an unnamed worker'}"
        of_cause.setdefault(str((each.metadata or {}).get("fault")), []).append(place)
    causes = [f"{', '.join(places)}: {cause}" for cause, places in of_cause.items()]
    return f"given up after {len(attempts)} faults, none of which is the agent's failure: {'; '.join(causes)}"


def _last_sign(attempt: Attempt) -> float:
    return attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time


def _rollout_as(rollout: Rollout, now: float, status: RolloutStatus) -> Rollout:
    if rollout.status == status:
        return rollout
    return evolve(rollout, status=status, end_time=now if status in ENDED else None)


def _with_status(record: RolloutRecord, now: float, status: RolloutStatus) -> RolloutRecord:
    rollout = _rollout_as(record.rollout, now, status)
    return record if rollout is record.rollout else record._replace(rollout=rollout)


def _with_attempt(record: RolloutRecord, attempt: Attempt, rollout: Rollout | None = None) -> RolloutRecord:
    """Return the record with this attempt in the place that its number says; with this rollout, too, if any."""
    number = attempt.sequence_id
    return RolloutRecord(
        record.run_id,
        record.rollout if rollout is None else rollout,
        (*record.attempts[: number - 1], attempt, *record.attempts[number:]),
        record.revision,
        record.lease_seconds,
        record.faults,
        record.requests,
    )
