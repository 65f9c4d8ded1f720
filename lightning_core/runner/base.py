"""The interface of a runner."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, Protocol, Self

from typing_extensions import TypeVar

from lightning_core.agent import LitAgent
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, Rollout, RolloutMode

logger = logging.getLogger(__name__)

worker_prefix: ContextVar[str] = ContextVar("lightning_worker_prefix", default="worker")
"""What the ids of the workers that begin in this context start with; a number follows."""


class StopEvent(Protocol):
    """An `asyncio.Event`, a `threading.Event`, an event of `multiprocessing`, or anything like one of them."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self) -> Any:
        """Wait until it is set: as a coroutine, or blocking, and then with a timeout as an optional argument."""
        ...


T_task = TypeVar("T_task", default=Any)
"""What the agent's tasks are; for type checkers."""


class Runner(Generic[T_task]):
    """Claims rollouts and runs the agent on them, one at a time.

    `init` and `init_worker` come first, `teardown_worker` and `teardown` last.
    """

    def init(self, agent: LitAgent[T_task], *, hooks: object = None) -> None:
        """Attach the agent, and the hooks that are told what happens: a `Hooks`, a plugin, or several."""
        raise NotImplementedError(f"{type(self).__name__} does not implement init")

    def init_worker(self, worker_id: int, store: LightningStore) -> None:
        """Attach the store.

        Args:
            worker_id: Tells the runners of a run apart, from 0.
            store: Where to look for work.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement init_worker")

    def teardown_worker(self, worker_id: int) -> None:
        """Undo `init_worker`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement teardown_worker")

    def teardown(self) -> None:
        """Undo `init`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement teardown")

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Run rollout after rollout, waiting for work where there is none.

        An agent that fails is a failed attempt, and the next rollout follows. Ends by the event, by the runner's own
        limit, or by cancellation: then the rollout that runs is stopped, and queued again.

        Args:
            event: No rollout is claimed any more once it is set; the one that runs is finished. It may be an
                `asyncio.Event`, a `threading.Event`, or anything like one of them.

        Raises:
            Exception: When the runner itself cannot go on: the store failed.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement iter")

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Raise a RuntimeError: a runner is run by `iter` or `step`."""
        raise RuntimeError(f"{type(self).__name__}.run does nothing; await iter() or step()")

    async def step(
        self,
        input: T_task,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run the agent once on an input, past the queue. The rollout is never queued, whatever happens.

        Args:
            input: The task.
            resources: What the agent uses, which becomes the latest version; None for the present one.
            mode: What the rollout is for.
            event: The agent is stopped, and the rollout cancelled, once it is set.

        Returns:
            The rollout, ended.

        Raises:
            Exception: What the agent, or its grader, raised, or the fault that kept it from its work.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement step")

    @contextmanager
    def run_context(
        self, *, agent: LitAgent[T_task], store: LightningStore, hooks: object = None, worker_id: int | None = None
    ) -> Iterator[Self]:
        """Set the runner up for a `with` block: for scripts and for debugging.

        Args:
            agent: What to run.
            store: Where to look for work.
            hooks: One plugin with hooks or several, or a `Hooks`, or None.
            worker_id: Tells the runners of a run apart, from 0; None for 0.
        """
        number = 0 if worker_id is None else worker_id
        self.init(agent, hooks=hooks)
        try:
            self.init_worker(number, store)
            try:
                yield self
            finally:
                _undo("worker ", partial(self.teardown_worker, number))
        finally:
            _undo("", self.teardown)


def _undo(what: str, teardown: Callable[[], None]) -> None:
    """Call it, and log what it raises: that must not take the place of what the block raised."""
    try:
        teardown()
    except Exception:
        logger.exception("Error during runner %steardown", what)
