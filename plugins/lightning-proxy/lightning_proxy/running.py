"""A proxy that runs, as others reach it: from any thread, from any event loop, or from none."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import ProxyError, StoreUnavailable
from lightning_proxy.control import ProxyControl, ProxyServer

T = TypeVar("T")


class RunningProxy:
    """Runs a proxy in this event loop, or in a thread with one of its own.

    Args:
        make: Makes the proxy, in the event loop that it belongs to.
        in_thread: Whether that is another one than the caller's.
    """

    def __init__(self, make: Callable[[], ProxyServer], *, in_thread: bool) -> None:
        self._make = make
        self._in_thread = in_thread
        self._serving: ProxyServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self._thread: EventLoopThread | None = None

    async def start(self, host: str, port: int) -> int:
        """Start it, and return its port.

        Raises:
            ConfigError: When it cannot listen there, or its model list is wrong.
        """
        if not self._in_thread:
            return await self._open(host, port)
        self._thread = EventLoopThread("model proxy", loop_factory=loop_factory(), at_end=self._close)
        try:
            return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._open(host, port))))
        except BaseException:  # a start that is not waited for comes to its end, and is undone
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            raise

    async def stop(self) -> None:
        """Stop it. It comes to its end also where the caller does not wait for that any more."""
        if self._thread is None:
            self._closing = asyncio.ensure_future(self._close())
            await asyncio.shield(self._closing)
            return
        self._thread.stop()
        await asyncio.shield(asyncio.wrap_future(self._thread.ended))
        await asyncio.to_thread(self._thread.join)

    async def ask(self, method: Callable[[ProxyControl], Awaitable[T]]) -> T:
        """Call something in the proxy's event loop, and wait for it.

        Raises:
            ProxyError: When it does not run.
        """
        serving, loop = self._known()

        async def call() -> T:
            return await method(serving)

        if _is_running_here(loop):
            return await call()
        return await asyncio.wrap_future(_handed_over(call(), loop))

    def ask_now(self, method: Callable[[ProxyControl], Coroutine[Any, Any, T]]) -> T:
        """Do the same for a caller who cannot wait, with what takes no time.

        Raises:
            ProxyError: When it does not run, or when this is called in the event loop that it would have to wait for.
        """
        serving, loop = self._known()
        if not _is_running_here(loop):
            return _handed_over(method(serving), loop).result()
        asked = method(serving)
        try:
            asked.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        asked.close()
        raise ProxyError("this cannot be asked in the proxy's own event loop; ask in another thread")

    def _known(self) -> tuple[ProxyServer, asyncio.AbstractEventLoop]:
        if self._serving is None or self._loop is None:
            raise ProxyError("the proxy does not run; start it first")
        return self._serving, self._loop

    async def _open(self, host: str, port: int) -> int:
        async with self._opening:
            serving = self._make()
            try:
                found = await serving.start(host, port)
            except BaseException:
                await serving.stop()
                raise
            self._serving, self._loop = serving, asyncio.get_running_loop()
            return found

    async def _close(self) -> None:
        async with self._opening:
            serving, self._serving, self._loop = self._serving, None, None
            if serving is not None:
                await serving.stop()


def _handed_over(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> "Future[T]":
    try:
        return asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError as exc:
        call.close()
        raise StoreUnavailable("the proxy has stopped") from exc


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
