"""What an algorithm reports while it runs: kept for the result, and passed on to the hooks."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from numbers import Real

from lightning_core.errors import AlgorithmError
from lightning_core.plugins import Hooks
from lightning_core.runs.metrics import merged
from lightning_core.runs.recording import Recording
from lightning_core.types import NamedResources, Resource

logger = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
"""How long hooks may take to hear of the last steps."""

STOP_SECONDS = 0.2
"""How long a hook that is cancelled may take to end."""


class Progress:
    """Takes an algorithm's reports, from any thread; hooks are told of steps in their order, in the run's loop.

    Args:
        recording: Where reports are written down, too, and what was reported before; None for nowhere.
    """

    def __init__(self, recording: Recording | None = None) -> None:
        self.metrics: dict[str, float] = {} if recording is None else dict(recording.metrics)
        """The newest value of each metric."""
        self.best_resources: NamedResources | None = None if recording is None else recording.best_resources
        """The newest best resources."""
        self._recording = recording
        self._steps: asyncio.Queue[tuple[int, dict[str, float | None]] | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def __call__(
        self,
        metrics: Mapping[str, float | None],
        *,
        step: int | None = None,
        best_resources: NamedResources | None = None,
    ) -> None:
        """Take a report; see `Algorithm.report`.

        Raises:
            AlgorithmError: When a metric is not a number, or a best resource not a resource; then nothing is taken.
            RunFolderError: When it cannot be written down.
        """
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        best = None if best_resources is None else _copies(best_resources)
        with self._lock:
            if self._recording is not None:
                self._recording.report(numbers, step, best)
            self.metrics = merged(self.metrics, numbers)
            self.best_resources = self.best_resources if best is None else best
            if step is not None and self._loop is not None and self._steps is not None:
                self._loop.call_soon_threadsafe(self._steps.put_nowait, (step, numbers))

    @asynccontextmanager
    async def telling(self, hooks: Hooks) -> AsyncIterator[None]:
        """Tell hooks of steps during the block; when it ends, they have been told of all of them.

        Where the block is cancelled, steps that they have not been told of by then are left out.
        """
        self._loop, self._steps = asyncio.get_running_loop(), asyncio.Queue()
        steps = self._steps

        async def tell() -> None:
            while (report := await steps.get()) is not None:
                await hooks.emit("lightning_step_end", step=report[0], metrics=report[1])

        task = asyncio.create_task(tell(), name="progress")
        try:
            yield
        except Exception:
            await self._finish(task)
            raise
        else:
            await self._finish(task)
        finally:
            with self._lock:
                self._loop = None
            task.cancel()
            await asyncio.wait((task,), timeout=STOP_SECONDS)

    async def _finish(self, telling: "asyncio.Task[None]") -> None:
        """Take no more steps, and wait until hooks have been told of those that were taken."""
        with self._lock:
            if self._loop is not None and self._steps is not None:
                self._loop.call_soon_threadsafe(self._steps.put_nowait, None)
            self._loop = None
        await asyncio.wait((telling,), timeout=FINISH_SECONDS)
        if not telling.done():
            logger.warning("lightning.step_hooks_abandoned; they took longer than %g s", FINISH_SECONDS)


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real):
        raise AlgorithmError(f"metric {name!r} is {value!r}; report a number, or None where it has no value any more")
    return float(value)


def _copies(resources: NamedResources) -> NamedResources:
    for name, resource in resources.items():
        if not isinstance(resource, Resource):
            raise AlgorithmError(
                f"best resource {name!r} is {resource!r}; report a resource, as in PromptTemplate(template=...)"
            )
    return {name: resource.model_copy(deep=True) for name, resource in resources.items()}
