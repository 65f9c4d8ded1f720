"""The interface of an execution strategy: where the algorithm and the runners live."""

from abc import ABC, abstractmethod
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
