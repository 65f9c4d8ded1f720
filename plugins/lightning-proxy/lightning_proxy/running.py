"""A proxy from its start to its stop: its server, in this event loop or in a thread with one of its own."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from lightning_http.body import ConnectionLimits
from lightning_http.listener import Listener, bind

from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import ProxyError, StoreUnavailable
from lightning_proxy.app import App
from lightning_proxy.service import ProxyService

T = TypeVar("T")

STOP_SECONDS = 5.0
"""How long calls may go on when the proxy stops, and how long it then waits for the store."""


def collect_rarely() -> None:
    """Have this process look for garbage less often. An answer with tokens is thousands of small objects.

    Collecting as often as usual takes a third of the time, and finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


class RunningProxy:
    """Runs a proxy in this event loop, or in a thread with one of its own.

    Args:
        make: Makes its parts, in the event loop that it belongs to.
        in_thread: Whether that is another one than the caller's.
    """

    def __init__(self, make: Callable[[], ProxyService], *, in_thread: bool) -> None:
        self._make = make
        self._thread = None
        if in_thread:
            self._thread = EventLoopThread("model proxy", loop_factory=loop_factory(), at_end=self._close)
        self._loop = self._thread.loop if self._thread is not None else asyncio.get_running_loop()
        self._service: ProxyService | None = None
        self._listener: Listener | None = None
        self._opening = asyncio.Lock()

    async def start(self, host: str, port: int) -> int:
        """Start it, and return its port.

        Raises:
            ConfigError: When it cannot listen there, or its model list is wrong.
        """
        if self._thread is None:
            return await self._open(host, port)
        try:
            return await asyncio.shield(asyncio.wrap_future(self._submit(self._open(host, port))))
        except BaseException:  # a start that is not waited for comes to its end, and is undone
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            raise

    async def stop(self) -> None:
        """Stop it. It comes to its end also where the caller does not wait for that any more."""
        if self._thread is None:
            await asyncio.shield(asyncio.ensure_future(self._close()))
            return
        self._thread.stop()
        await asyncio.shield(asyncio.wrap_future(self._thread.ended))
        await asyncio.to_thread(self._thread.join)

    async def ask(self, method: Callable[[ProxyService], Awaitable[T]]) -> T:
        """Call something in the service's event loop, and wait for it."""

        async def call() -> T:
            return await method(self._started())

        return await (call() if self._is_here() else asyncio.wrap_future(self._submit(call())))

    def tell(self, method: Callable[[ProxyService], T]) -> T:
        """Do the same with what takes no time."""

        async def call() -> T:
            return method(self._started())

        return method(self._started()) if self._is_here() else self._submit(call()).result()

    def _started(self) -> ProxyService:
        if self._service is None:
            raise ProxyError("the proxy does not run; start it first")
        return self._service

    async def _open(self, host: str, port: int) -> int:
        async with self._opening:
            self._service = service = self._make()
            try:
                await asyncio.to_thread(service.require_prices)  # LiteLLM may be imported
                bound = bind(host, port)
                bound_port: int = bound.getsockname()[1]
                limits = ConnectionLimits(max_body_bytes=service.settings.max_body_bytes)
                # Known before it is open: a start may be cancelled.
                self._listener = Listener(App(service), bound, limits)
                await self._listener.open()
            except BaseException:
                await self._stop()
                raise
            return bound_port

    async def _close(self) -> None:
        async with self._opening:
            await self._stop()

    async def _stop(self) -> None:
        """Let calls end, bring their spans to the store, and close everything."""
        service, self._service = self._service, None
        listener, self._listener = self._listener, None
        if service is None:
            return
        service.limiter.close()
        if listener is not None:
            await listener.close(seconds=STOP_SECONDS)
        await service.aclose(STOP_SECONDS)

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _submit(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as exc:
            call.close()
            raise StoreUnavailable("the proxy has stopped") from exc
