"""Keep deadlines while somebody waits: one task for each event loop that has waiters, none where there are none."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lightning_core.errors import StoreClosed
from lightning_core.store.backend import StoreBackend
from lightning_core.store.clock import Clock
from lightning_core.store.standstill import Standstill
from lightning_core.store.waits import Waits

logger = logging.getLogger(__name__)


class Watchdogs:
    """Ends what is due at its time, for as long as anybody waits for it.

    Args:
        backend: Where deadlines are kept.
        run_id: Whose deadlines.
        clock: Where the time comes from, and how to wait.
        waits: Tells of deadlines that are earlier than the one waited for.
        standstill: Is told when the next look is going to be.
        look: Ends what is due.
        next_deadline: Returns when to look next, in seconds since the epoch.
    """

    def __init__(
        self,
        backend: StoreBackend,
        run_id: str,
        clock: Clock,
        waits: Waits,
        standstill: Standstill,
        look: Callable[[], Awaitable[None]],
        next_deadline: Callable[[], Awaitable[float | None]],
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock
        self._waits = waits
        self._standstill = standstill
        self._look = look
        self._next_deadline = next_deadline
        self._waiters: dict[asyncio.AbstractEventLoop, int] = {}
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}

    @asynccontextmanager
    async def on_duty(self) -> AsyncIterator[None]:
        """Keep deadlines during the block.

        Raises:
            Exception: The backend's, after the block, when it cannot say what is due next.
        """
        loop = asyncio.get_running_loop()
        self._waiters[loop] = self._waiters.get(loop, 0) + 1
        task = self._tasks.get(loop)
        if task is None or task.done():
            task = loop.create_task(self._keep_deadlines(), name=f"deadlines of {self._run_id}")
            self._tasks[loop] = task
        try:
            yield
            if task.done() and not task.cancelled() and not task.result():
                await self._backend.next_deadline(self._run_id)  # whoever waits meets the trouble by itself
        finally:
            self._waiters[loop] -= 1
            if self._waiters[loop] == 0:
                del self._waiters[loop]
                task = self._tasks.pop(loop)
                task.cancel()
                await asyncio.wait((task,))

    async def _keep_deadlines(self) -> bool:
        """Return when there are none to keep any more.

        Returns:
            Whether they were kept until then.
        """
        me = asyncio.current_task()
        try:
            while True:
                self._waits.check_open()
                await self._look()
                ticket = self._waits.for_deadline()
                try:
                    deadline = await self._next_deadline()
                    seconds = None
                    if deadline is not None:
                        self._waits.expect(ticket, deadline)
                        seconds = max(0.0, deadline - self._clock.now())
                    self._standstill.plan(me, seconds)
                    await self._clock.wait(ticket.future, seconds)
                finally:
                    self._waits.leave_deadline(ticket)
        except StoreClosed:
            return True  # whoever waits has been told
        except Exception:
            # Whoever waits asks again, and meets the same trouble where it can be raised.
            logger.warning("lightning.deadlines_not_kept run_id=%s", self._run_id, exc_info=True)
            self._waits.call_everyone()
            return False
        finally:
            self._standstill.plan(me, None)
