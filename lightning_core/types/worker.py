"""The record of one runner instance."""

from typing import Any, Literal

from pydantic import BaseModel

WorkerStatus = Literal["idle", "busy", "unknown"]
"""`busy` while it has an assignment, `unknown` when its attempt was given up."""


class Worker(BaseModel):
    """One runner instance as the store sees it. All times are in seconds since the epoch."""

    worker_id: str
    """Unique among the workers of a run."""
    status: WorkerStatus = "unknown"
    """What it does now."""
    heartbeat_stats: dict[str, Any] | None = None
    """What its last heartbeat said of itself."""
    last_heartbeat_time: float | None = None
    """When it last sent a heartbeat."""
    last_dequeue_time: float | None = None
    """When it last asked for work."""
    last_busy_time: float | None = None
    """When it last was given an attempt."""
    last_idle_time: float | None = None
    """When it last ended an attempt."""
    current_rollout_id: str | None = None
    """The rollout that it works on."""
    current_attempt_id: str | None = None
    """The attempt that it works on."""
