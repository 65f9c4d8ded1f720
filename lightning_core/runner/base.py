"""The interface of a runner."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from lightning_core.agent import LitAgent
from lightning_core.plugins import Hooks
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, Rollout, RolloutMode


class Runner(ABC):
    """Claims rollouts and runs the agent on them, one at a time.

    `init` and `init_worker` come first, `teardown_worker` and `teardown` last.
    """

    @abstractmethod
    def init(self, agent: LitAgent[Any], *, hooks: Hooks | None = None) -> None:
        """Attach the agent, and the hooks that are told what happens."""

    @abstractmethod
    def init_worker(self, worker_id: int, store: LightningStore) -> None:
        """Attach the store.

        Args:
            worker_id: Tells the runners of a run apart, from 0.
            store: Where to look for work.
        """

    @abstractmethod
    def teardown_worker(self, worker_id: int) -> None:
        """Undo `init_worker`."""

    @abstractmethod
    def teardown(self) -> None:
        """Undo `init`."""

    @abstractmethod
    async def iter(self) -> None:
        """Run rollout after rollout, waiting for work where there is none.

        An agent that fails is a failed attempt, and the next rollout follows. Ends by cancellation, or by the
        runner's own limit.

        Raises:
            Exception: When the runner itself cannot go on: the store failed.
        """

    @abstractmethod
    async def step(
        self, input: Any, *, resources: NamedResources | None = None, mode: RolloutMode | None = None
    ) -> Rollout:
        """Run the agent once on an input, past the queue.

        Args:
            input: The task.
            resources: What the agent uses, which becomes the latest version; None for the present one.
            mode: What the rollout is for.

        Returns:
            The rollout, ended.

        Raises:
            Exception: What the agent raised.
        """

    @contextmanager
    def run_context(
        self, *, agent: LitAgent[Any], store: LightningStore, hooks: Hooks | None = None, worker_id: int = 0
    ) -> Iterator[Self]:
        """Set the runner up for a `with` block: for scripts and for debugging."""
        self.init(agent, hooks=hooks)
        try:
            self.init_worker(worker_id, store)
            try:
                yield self
            finally:
                self.teardown_worker(worker_id)
        finally:
            self.teardown()
