"""The interface of an execution strategy: where the algorithm and the runners live."""

import multiprocessing
import multiprocessing.synchronize
import threading
from abc import ABC, abstractmethod
from multiprocessing.context import BaseContext
from typing import Protocol

from lightning_core.store import LightningStore


class AlgorithmBundle(Protocol):
    """The algorithm's side of a run, ready to go."""

    async def __call__(self, store: LightningStore) -> None:
        """Run the algorithm to its end."""
        ...


class RunnerBundle(Protocol):
    """The runners' side of a run, ready to go."""

    async def __call__(self, store: LightningStore, worker_id: int) -> None:
        """Run one runner until it is cancelled or has reached its own limit."""
        ...


class ExecutionStrategy(ABC):
    """Runs one algorithm and its runners."""

    @abstractmethod
    async def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Run the algorithm to its end, with runners beside it, and leave nothing running.

        Runners are ended when the algorithm has ended, failed or been cancelled. Those of other machines hear of it
        from the store: it is told with `begin_run` before the algorithm is called, and with `end_run` after.

        Args:
            algorithm: Called once.
            runner: Called once for each runner, with `worker_id` from 0.
            store: What both sides share.

        Raises:
            Exception: What the algorithm raised, or what a runner raised that could not go on.
            ExecutionError: When a rollout is queued and no runner is left, or when either side cancelled itself.
        """


class ExecutionEvent(Protocol):
    """Says when to stop: a `threading.Event`, an event of `multiprocessing`, or anything like them."""

    def set(self) -> None:
        """Ask everybody to stop. Idempotent."""
        ...

    def clear(self) -> None:
        """Take that back."""
        ...

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, or for `timeout` seconds; return whether it is set."""
        ...


ThreadingEvent = threading.Event
"""An event for the threads of one process."""


class MultiprocessingEvent(multiprocessing.synchronize.Event):
    """An event for several processes, which are given it when they are started.

    Args:
        ctx: How processes are started here; None for the default of the platform.
    """

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        super().__init__(ctx=multiprocessing.get_context() if ctx is None else ctx)
