"""Rollout records as columns and JSON, and back.

A database keeps the fields of a rollout that queries ask for, and the queue's and the deadline's own, each by itself.
The rest is two texts: the task, which hardly ever changes, and the state, which changes all the time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.store.codec.spans import as_json, dumped, loaded
from lightning_core.types import Attempt, Rollout, RolloutConfig
from lightning_core.types.frozen import construct, evolve

_NO_LIMITS = RolloutConfig()
_ROLLOUT_FIELDS = set(Rollout.model_fields)
_ATTEMPT_FIELDS = set(Attempt.model_fields)
_COLUMNS = ("rollout_id", "status", "mode", "resources_id", "start_time", "end_time")
_TASK = ("input", "metadata", "config")
_NEWER = {name: each.get_default() for name, each in Rollout.model_fields.items() if name not in _COLUMNS + _TASK}
"""What belongs to the task since later versions, and what it is in tasks that were kept before."""


def kept(record: RolloutRecord, before: RolloutRecord | None) -> RolloutRecord:
    """Return the record as it will be read again, of values that JSON can hold.

    Args:
        record: The record.
        before: What it was made of; what it shares with this one is known to be plain.

    Raises:
        InvalidRequest: Names the value that JSON cannot hold.
    """
    rollout, old = record.rollout, before.rollout if before else None
    changed: dict[str, Any] = {}
    for name in ("input", "metadata", *_NEWER):
        value = getattr(rollout, name)
        if value is not None and (old is None or value is not getattr(old, name)):
            changed[name] = as_json(value, f"the {name} of rollout {rollout.rollout_id}")
    known = () if before is None else before.attempts
    attempts = tuple(
        attempt if attempt.metadata is None or any(attempt is other for other in known) else _kept_attempt(attempt)
        for attempt in record.attempts
    )
    if not changed and all(new is attempt for new, attempt in zip(attempts, record.attempts, strict=True)):
        return record
    return record._replace(rollout=evolve(rollout, **changed) if changed else rollout, attempts=attempts)


def same_task(one: Rollout, other: Rollout) -> bool:
    """Whether two rollouts share what hardly ever changes."""
    return all(getattr(one, name) is getattr(other, name) for name in (*_TASK, *_NEWER))


def task(rollout: Rollout) -> bytes:
    """Return what hardly ever changes of a rollout, as JSON."""
    config = None if rollout.config == _NO_LIMITS else rollout.config.model_dump(exclude_defaults=True)
    newer = {name: getattr(rollout, name) for name in _NEWER}
    return dumped([rollout.input, rollout.metadata, config, *([newer] if newer else [])])


def state(record: RolloutRecord) -> bytes:
    """Return the attempts, and what the record knows beside its rollout, as JSON."""
    attempts = [
        [
            *(attempt.attempt_id, attempt.sequence_id, attempt.start_time, attempt.end_time, attempt.status),
            *(attempt.worker_id, attempt.last_heartbeat_time, attempt.metadata),
        ]
        for attempt in record.attempts
    ]
    return dumped([attempts, record.lease_seconds, record.faults, record.requests])


def decoded(run_id: str, fields: Mapping[str, Any], revision: int, *, task: bytes, state: bytes) -> RolloutRecord:
    """Return the record of what was kept.

    Args:
        run_id: Its run.
        fields: `rollout_id`, `status`, `mode`, `resources_id`, `start_time` and `end_time` of its rollout.
        revision: Its revision.
        task: What `task` has made.
        state: What `state` has made.
    """
    attempts, lease_seconds, faults, requests = loaded(state)
    input, metadata, config, *newer = loaded(task)
    whole = {
        **_NEWER,
        **fields,
        "input": input,
        "config": _NO_LIMITS if config is None else RolloutConfig(**config),
        "metadata": metadata,
        **(newer[0] if newer else {}),
    }
    return RolloutRecord(
        run_id,
        construct(Rollout, whole, _ROLLOUT_FIELDS),
        tuple(_attempt(fields["rollout_id"], attempt) for attempt in attempts),
        revision,
        lease_seconds,
        tuple(faults),
        requests_of(requests),
    )


def requests_of(kept_requests: Sequence[Any]) -> tuple[Request, ...]:
    """Return requests as they were kept; an older version kept their ids alone with documents."""
    return tuple(Request(each) if isinstance(each, str) else Request(*each) for each in kept_requests)


def _kept_attempt(attempt: Attempt) -> Attempt:
    return evolve(attempt, metadata=as_json(attempt.metadata, f"the metadata of attempt {attempt.attempt_id}"))


def _attempt(rollout_id: str, kept_fields: Sequence[Any]) -> Attempt:
    attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata = kept_fields
    fields = {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": sequence_id,
        "start_time": start_time,
        "end_time": end_time,
        "status": status,
        "worker_id": worker_id,
        "last_heartbeat_time": last_heartbeat_time,
        "metadata": metadata,
    }
    return construct(Attempt, fields, _ATTEMPT_FIELDS)
