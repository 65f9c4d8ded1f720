"""Rollout records of the database's rows."""

from collections.abc import Sequence
from typing import Any

from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.codec import records

COLUMNS = (
    "rollout.rollout, rollout_id, status, mode, resources_id, start_time, end_time, revision, ticket, state, task.body"
)
"""What `decoded` takes, of `rollout JOIN task USING (rollout)`."""


def decoded(run_id: str, row: Sequence[Any]) -> tuple[RolloutRecord, int, int | None]:
    """Return the record, its number and its ticket, of a row of `COLUMNS`."""
    number, rollout_id, status, mode, resources_id, start_time, end_time, revision, ticket, state, task = row
    fields = {
        "rollout_id": rollout_id,
        "status": status,
        "mode": mode,
        "resources_id": resources_id,
        "start_time": start_time,
        "end_time": end_time,
    }
    return records.decoded(run_id, fields, revision, task=task, state=state), number, ticket
