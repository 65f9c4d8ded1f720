"""A model call under way, which others can cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_core.proxy.exchange import Exchange
from lightning_core.proxy.refusals import Refused, proxy_stopped
from lightning_core.store.http.body import ClientGone


class HungUp(ClientGone):
    """The agent does not wait for the answer any more."""


class Call:
    """One call, in the task that answers it.

    Args:
        exchange: The agent's request.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task = asyncio.current_task()
        self._cut: Exception | None = None
        self._is_open = False

    def abort(self, reason: str) -> None:
        """Cut it off; the agent is told to try again. Does nothing once it has ended."""
        self._interrupt(Refused(503, "call_aborted", f"the call was cut off: {reason}", retry_after=1.0))

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Let `abort`, and the agent by hanging up, end the block.

        Raises:
            Refused: When the block was cut off, or the server stops.
            HungUp: When the agent is gone.
        """
        watch = asyncio.create_task(self._watch())
        self._is_open = True
        try:
            yield
        except asyncio.CancelledError:
            if self._cut is not None and self._task is not None and self._task.uncancel() == 0:
                raise self._cut from None
            self._exchange.hurry()
            raise proxy_stopped() from None  # nobody else cancels requests than the server when it stops
        finally:
            self._is_open = False
            watch.cancel()

    async def _watch(self) -> None:
        await self._exchange.gone()
        if not self._exchange.is_done:  # the server says the same of an answer that has come to its end
            self._interrupt(HungUp())

    def _interrupt(self, why: Exception) -> None:
        if self._is_open and self._cut is None and self._task is not None:
            self._cut = why
            self._task.cancel()
