"""Work that several want and one does."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Does what has the same key once; whoever else wants it waits for the result.

    When the one that does it fails, those that wait are cancelled: all of them have one owner, which ends them anyway.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, asyncio.Future[T]] = {}

    async def __call__(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` gives, or gave before for this key."""
        if key in self._results:
            return await asyncio.shield(self._results[key])
        future = self._results[key] = asyncio.get_running_loop().create_future()
        try:
            result = await work()
        except BaseException:
            future.cancel()
            raise
        future.set_result(result)
        return result
