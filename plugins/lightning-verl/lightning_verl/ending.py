"""The end of a training before its last step, which keeps what it has learned."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_EARLY = "the training is to end before its last step"


class Enough(Exception):
    """Nothing more can be learned or measured; what was learned is to be kept."""


class Ending:
    """Whether a training is to end as soon as it can. Belongs to the event loop, but for `is_asked`."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    @property
    def is_asked(self) -> bool:
        """Whether it is to end. May be read in any thread."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Let it end."""
        self._asked.set()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a piece of work, unless the training is to end, before it or in its middle.

        Raises:
            Enough: When it is to end, also where the work has failed by then.
            Exception: What the work raised.
        """
        if self._asked.is_set():
            work.close()
            raise Enough(_EARLY)
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or (self._asked.is_set() and task.exception() is not None):
                raise Enough(_EARLY)
            return task.result()
        finally:
            task.cancel()
            asked.cancel()
            await asyncio.wait((task, asked))
