"""Rollout records as documents, and back."""

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Timestamp

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import codec

SERVER_TIME = Timestamp(0, 0)
"""In a new document, the server puts its own time in its place: each time another one, and always a later one."""
NOW = {"$type": "timestamp"}
"""The same in a `$currentDate`."""

MAX_BYTES = 16 * 1024 * 1024 - 64 * 1024
"""What MongoDB keeps in one document, less what stands beside the texts."""
MAX_TASK = 14 * 1024 * 1024
"""Of a rollout's input, metadata and config, so that there is room for what becomes of it."""
MAX_STATE = 2 * 1024 * 1024 - 256 * 1024
"""Of a rollout's attempts with their metadata."""
_STEP = 4 * 1024
"""By how much the state may grow beyond that with one change: a claim or an end is not refused."""

FIELDS = ("status", "mode", "resources_id", "start_time", "end_time")
"""The fields of a rollout that are fields of the document."""

PROJECTION = dict.fromkeys((*FIELDS, "revision", "task", "state"), 1)
"""What `decoded` takes."""

CLAIMED = "claims"
"""Which requests claimed it, and as which of those that they claimed."""


def inserted(key: str, record: RolloutRecord, *, token: str, keep_seconds: float | None) -> dict[str, Any]:
    """Return the document of a new record."""
    rollout, due = record.rollout, deadline_of(record)
    document: dict[str, Any] = {
        "_id": {"run": key, "id": rollout.rollout_id},
        "number": SERVER_TIME,
        "changed": SERVER_TIME,
        **{name: getattr(rollout, name) for name in FIELDS},
        "revision": record.revision,
        "attempts": len(record.attempts),
        "written": token,
        "task": codec.task(rollout),
        "state": codec.state(record),
    }
    check_size(_task_of(rollout.rollout_id), len(document["task"]), MAX_TASK)
    check_size(_state_of(rollout.rollout_id), len(document["state"]), MAX_STATE)
    if rollout.status in lifecycle.QUEUED:
        document["ticket"] = SERVER_TIME
    if due is not None:
        document["deadline"] = due
    if rollout.status in lifecycle.ENDED and keep_seconds is not None:
        document["expires"] = expires_in(keep_seconds)
    return document


def changed(
    old: RolloutRecord, new: RolloutRecord, *, token: str, keep_seconds: float | None, claim: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the update that leads from one record to the next.

    Args:
        old: The record as it is kept.
        new: The record that follows, as `records.kept` gives it.
        token: What this write leaves behind.
        keep_seconds: How long a rollout is kept that has ended; None until it is deleted.
        claim: The request that claims it, if one does.
    """
    before, rollout = old.rollout, new.rollout
    values: dict[str, Any] = {
        name: getattr(rollout, name) for name in FIELDS if getattr(rollout, name) != getattr(before, name)
    }
    values |= {"revision": old.revision + 1, "written": token, "state": codec.state(new)}
    if len(new.attempts) != len(old.attempts):
        values["attempts"] = len(new.attempts)
    if not codec.same_task(rollout, before):
        values["task"] = codec.task(rollout)
        check_size(_task_of(rollout.rollout_id), len(values["task"]), MAX_TASK)
    if len(values["state"]) > MAX_STATE and len(values["state"]) - len(codec.state(old)) > _STEP:
        check_size(_state_of(rollout.rollout_id), len(values["state"]), MAX_STATE)
    times, gone = {"changed": NOW}, {}
    was_queued, is_queued = before.status in lifecycle.QUEUED, rollout.status in lifecycle.QUEUED
    if is_queued and not was_queued:
        times["ticket"] = NOW
    elif was_queued and not is_queued:
        gone["ticket"] = ""
    due = deadline_of(new)
    if due is None:
        gone["deadline"] = ""
    else:
        values["deadline"] = due
    if rollout.status in lifecycle.ENDED and keep_seconds is not None:
        values["expires"] = expires_in(keep_seconds)
    update: dict[str, Any] = {"$set": values, "$currentDate": times}
    if gone:
        update["$unset"] = gone
    if claim is not None:
        update["$push"] = {CLAIMED: claim}
    return update


def decoded(run_id: str, document: dict[str, Any]) -> RolloutRecord:
    """Return the record of a document."""
    fields = {"rollout_id": document["_id"]["id"], **{name: document[name] for name in FIELDS}}
    return codec.decoded(run_id, fields, document["revision"], task=document["task"], state=document["state"])


def deadline_of(record: RolloutRecord) -> float | None:
    """Return when the record has to be looked at again."""
    due = lifecycle.deadline(record)
    return None if due is None else due.at


def expires_in(seconds: float) -> datetime:
    """Return when something is deleted by the server that is written now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _task_of(rollout_id: str) -> str:
    return f"the input, metadata and config of rollout {rollout_id}"


def _state_of(rollout_id: str) -> str:
    return f"the attempts of rollout {rollout_id} with their metadata"


def check_size(what: str, size: int, most: int = MAX_BYTES) -> None:
    """Check that something fits into one document.

    Raises:
        InvalidRequest: When it does not.
    """
    if size > most:
        raise InvalidRequest(
            f"{what}: {size:,} bytes, and this store keeps at most {most:,} of it, since MongoDB keeps 16 MiB in a "
            "document; keep large values elsewhere, and here where they are"
        )
