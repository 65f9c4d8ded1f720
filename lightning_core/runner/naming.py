"""What the workers of a process are called."""

from contextvars import ContextVar

worker_prefix: ContextVar[str] = ContextVar("lightning_worker_prefix", default="worker")
"""What the ids of the workers that begin in this context start with; a number follows."""


def worker_name(number: int) -> str:
    """Return the id of the worker with a number, among those of this context."""
    return f"{worker_prefix.get()}-{number}"
