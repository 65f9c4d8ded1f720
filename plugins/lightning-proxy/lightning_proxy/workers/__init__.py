"""A proxy in several processes: its workers answer calls, and the process that started them keeps what they share."""

from lightning_proxy.workers.pool import Plan, WorkerPool

__all__ = ["Plan", "WorkerPool"]
