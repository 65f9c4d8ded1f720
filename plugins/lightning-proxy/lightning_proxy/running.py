"""A proxy that runs, as others reach it: from any thread, from any event loop, or from none."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

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
        self._serving: ProxyServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self._thread = _Thread(self._close) if in_thread else None

    async def start(self, host: str, port: int) -> int:
        """Start it, and return its port.

        Raises:
            ConfigError: When it cannot listen there, or its model list is wrong.
        """
        if self._thread is None:
            return await self._open(host, port)
        started = self._thread.start(lambda: self._open(host, port))
        try:
            return await asyncio.shield(asyncio.wrap_future(started))
        except BaseException:  # a start that nobody waits for comes to its end, and is undone
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            raise

    async def stop(self) -> None:
        """Stop it. It comes to its end also where nobody waits for that any more."""
        if self._thread is None:
            self._closing = asyncio.ensure_future(self._close())
            await asyncio.shield(self._closing)
            return
        await asyncio.shield(asyncio.wrap_future(self._thread.stop()))
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
        serving = self._make()
        try:
            found = await serving.start(host, port)
        except BaseException:
            await serving.stop()
            raise
        self._serving, self._loop = serving, asyncio.get_running_loop()
        return found

    async def _close(self) -> None:
        serving, self._serving, self._loop = self._serving, None, None
        if serving is not None:
            await serving.stop()


class _Thread:
    """A thread with an event loop in which a proxy runs."""

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._closing = closing
        self._opening: Callable[[], Coroutine[Any, Any, int]] | None = None
        self._opened: Future[int] = Future()
        self._closed: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: asyncio.Event | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="model proxy", daemon=True)

    def start(self, opening: Callable[[], Coroutine[Any, Any, int]]) -> "Future[int]":
        self._opening = opening
        self._thread.start()
        return self._opened

    def stop(self) -> "Future[None]":
        self._is_over = True
        if self._loop is not None and self._told is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._told.set)
        return self._closed

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._opening is not None
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            port = await self._opening()
        except BaseException as exc:
            self._opened.set_exception(exc)
            return
        self._opened.set_result(port)
        if not self._is_over:  # else it was told before there was anything to tell
            await self._told.wait()
        try:
            await self._closing()
        except BaseException as exc:
            self._closed.set_exception(exc)
        else:
            self._closed.set_result(None)


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
