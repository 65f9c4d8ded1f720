"""A model call under way, which others can cut off."""

import asyncio
from types import TracebackType
from typing import Self

from lightning_core.proxy.exchange import Exchange
from lightning_core.proxy.refusals import Refused, proxy_stopped
from lightning_core.store.http.body import ClientGone

_LATER_SECONDS = 0.05
"""After how long it is looked whether an agent waits that gets nothing before its whole answer."""


class HungUp(ClientGone):
    """The agent does not wait for the answer any more."""


class Call:
    """One call, in the task that answers it: a block which `abort`, and the agent by hanging up, end.

    Args:
        exchange: The agent's request, whose body was read.
        is_stream: Whether the agent gets its answer in pieces. Then it is watched from the beginning; otherwise only if
            the call is not over in a moment.

    Raises:
        Refused: When the block was cut off, or the server stops.
        HungUp: When the agent is gone.
    """

    def __init__(self, exchange: Exchange, *, is_stream: bool) -> None:
        self._exchange = exchange
        self._is_stream = is_stream
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cut: Exception | None = None
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def abort(self, reason: str) -> None:
        """Cut it off; the agent is told to try again. Does nothing once it has ended."""
        self._interrupt(Refused(503, "call_aborted", f"the call was cut off: {reason}", retry_after=1.0))

    async def __aenter__(self) -> Self:
        if self._is_stream:
            self._watch()
        else:
            self._timer = self._loop.call_later(_LATER_SECONDS, self._watch)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        task, self._task = self._task, None  # whose context knows the call: without it both are let go of at once
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if isinstance(error, asyncio.CancelledError):
            if self._cut is not None and task is not None and task.uncancel() == 0:
                raise self._cut from None
            self._exchange.hurry()
            raise proxy_stopped() from None  # nobody else cancels requests than the server when it stops

    def _watch(self) -> None:
        self._watching = self._loop.create_task(self._until_gone(), name="hang-up of an agent")

    async def _until_gone(self) -> None:
        await self._exchange.gone()
        if not self._exchange.is_done:  # the server says the same of an answer that has come to its end
            self._interrupt(HungUp())

    def _interrupt(self, why: Exception) -> None:
        if self._is_open and self._cut is None and self._task is not None:
            self._cut = why
            self._task.cancel()
