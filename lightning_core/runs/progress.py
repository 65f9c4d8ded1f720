"""What an algorithm reports while it runs: kept for the result, and passed on to the hooks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from lightning_core.plugins import Hooks
from lightning_core.types import NamedResources


class Progress:
    """Takes an algorithm's reports, from any thread; hooks are told of steps in their order, in the run's loop."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        """The newest value of each metric."""
        self.best_resources: NamedResources | None = None
        """The newest best resources."""
        self._steps: asyncio.Queue[tuple[int, dict[str, float]] | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def __call__(
        self, metrics: Mapping[str, float], *, step: int | None = None, best_resources: NamedResources | None = None
    ) -> None:
        """Take a report; see `Algorithm.report`."""
        with self._lock:
            self.metrics.update(metrics)
            if best_resources is not None:
                self.best_resources = {name: resource.model_copy() for name, resource in best_resources.items()}
            if step is not None and self._loop is not None and self._steps is not None:
                self._loop.call_soon_threadsafe(self._steps.put_nowait, (step, dict(metrics)))

    @asynccontextmanager
    async def telling(self, hooks: Hooks) -> AsyncIterator[None]:
        """Tell hooks of steps during the block; when it ends, they have been told of all of them."""
        self._loop, self._steps = asyncio.get_running_loop(), asyncio.Queue()
        steps = self._steps

        async def tell() -> None:
            while (report := await steps.get()) is not None:
                await hooks.emit("lightning_step_end", step=report[0], metrics=report[1])

        task = asyncio.create_task(tell(), name="progress")
        try:
            yield
            with self._lock:
                self._loop.call_soon_threadsafe(steps.put_nowait, None)
                self._loop = None
            await task
        finally:
            with self._lock:
                self._loop = None
            task.cancel()
            await asyncio.wait((task,))
