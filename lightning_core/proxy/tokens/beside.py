"""What takes long, beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Beside:
    """A thread for what would keep the event loop from all other calls; what is small is done at once.

    There is one thread, so what it is given is done in turn.

    Args:
        least: From which size on something is done in the thread.
    """

    def __init__(self, *, least: int) -> None:
        self._least = least
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, or raise what it raises.

        Args:
            size: How large what it works on is.
            function: What to do.
            args: Its arguments.
            kwargs: Its arguments.
        """
        if size < self._least:
            return function(*args, **kwargs)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-tokens")
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    def close(self) -> None:
        """End the thread when it has done what it was given. It is started anew where it is needed again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)
