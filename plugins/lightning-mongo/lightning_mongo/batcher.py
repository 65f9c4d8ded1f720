"""Requests that come while another one is under way are carried out together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from lightning_core.errors import StoreUnavailable

A = TypeVar("A")
B = TypeVar("B")


class Together(Generic[A, B]):
    """Makes one call of the database out of many. A request never joins a call that has begun before it came.

    So 32 callers share a round trip, and a flush of the server's journal, and one caller waits for nobody.

    Args:
        carry_out: Answers requests, in their order.
        limit: How many go together at most.
    """

    def __init__(self, carry_out: Callable[[list[A]], Awaitable[Sequence[B]]], *, limit: int = 500) -> None:
        self._carry_out = carry_out
        self._limit = limit
        self._waiting: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: A) -> B:
        """Return the answer to a request."""
        return (await self.ask_all([request]))[0]

    async def ask_all(self, requests: Sequence[A]) -> list[B]:
        """Return the answers to several requests, which need not go together."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[B]] = [loop.create_future() for _ in requests]
        self._waiting.extend(zip(requests, futures, strict=True))
        if self._task is None and futures:
            self._task = loop.create_task(self._work())
        return list(await asyncio.gather(*futures))

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), self._limit)
                await self._answer([self._waiting.popleft() for _ in range(count)])
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[A, "asyncio.Future[B]"]]) -> None:
        try:
            answers = await self._carry_out([request for request, _ in batch])
        except Exception as exc:
            if len(batch) > 1 and not isinstance(exc, StoreUnavailable):
                for each in batch:  # so that none fails for another's reason
                    await self._answer([each])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
