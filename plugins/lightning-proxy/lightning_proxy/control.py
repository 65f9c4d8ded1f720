"""What a running proxy can be told, and how it is reached from any thread and event loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from lightning_http.body import ConnectionLimits, Seconds
from pydantic import Field, NonNegativeInt, PositiveInt

from lightning_core.concurrency import EventLoopThread, loop_factory
from lightning_core.errors import ProxyError, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_proxy.limiter import Drained
from lightning_proxy.model_list import ModelOptions
from lightning_proxy.owner import Owner
from lightning_proxy.spending import AttemptLimits

T = TypeVar("T")


class CallsLost(ProxyError):
    """Calls of an attempt are gone: the store cannot keep them."""


class ProxyControl(ABC):
    """A proxy that can be started, told things while it runs, and stopped. Belongs to one event loop."""

    @abstractmethod
    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Let calls end, bring their spans to the store, and close everything."""

    @abstractmethod
    async def pause(self, seconds: float | None = None) -> None:
        """Let no new call start. Idempotent.

        Args:
            seconds: How long a call that comes from now on waits for `resume`; None for `pause_seconds`.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let calls start again."""

    @abstractmethod
    async def drain(self, timeout: float | None) -> Drained:
        """Wait until no call is in flight; cut off those that still are after `timeout` seconds."""

    @abstractmethod
    async def set_weight_version(self, version: str | None) -> None:
        """Record this version of the weights with each call from now on."""

    @abstractmethod
    async def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Send calls to other replicas from now on. Those that have not changed keep their connections.

        Raises:
            ConfigError: When an entry is wrong; then nothing changes.
            RegistryError: When a backend cannot be had; then nothing changes.
        """

    @abstractmethod
    async def set_store(self, store: LightningStore) -> None:
        """Record calls in another store from now on.

        Raises:
            ProxyError: When it has calls that the present store does not have yet.
        """

    @abstractmethod
    async def flush(self, owner: Owner, end: bool) -> None:
        """Return when the store has the calls of an attempt.

        Args:
            owner: The attempt.
            end: Whether it has ended: calls in flight are cut off after a moment, and no other one begins. Otherwise
                they go on, and are not waited for.

        Raises:
            StoreUnavailable: When the store did not take them in time.
            CallsLost: When calls of it are gone for good.
        """

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """Return how it stands."""


Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds; 0 for no wait."""


@dataclass(frozen=True)
class Settings(ConnectionLimits):
    """The limits of a proxy. Seconds are real ones, unless a test brings its own clock."""

    allow_unattributed: bool = False
    allow_paths: Sequence[str] = ()
    attribution_header: str | None = None
    cors_allow_origins: Sequence[str] = ()
    models: Sequence[ModelOptions] = ()
    attempt_limits: AttemptLimits | None = None
    num_retries: NonNegativeInt = 2
    first_retry_seconds: Wait = 0.25
    max_concurrent_calls: PositiveInt = 4096
    max_waiting_calls: NonNegativeInt = 16_384
    queue_seconds: Wait = 300.0
    pause_seconds: Wait = 60.0
    stall_seconds: Seconds = 120.0
    flush_grace_seconds: Wait = 1.0
    flush_seconds: Wait | None = 30.0
    max_incoming_bytes: PositiveInt = 512 * 1024 * 1024
    max_unsent_spans: PositiveInt = 20_000
    max_unsent_bytes: PositiveInt = 512 * 1024 * 1024


class RunningProxy:
    """Runs a proxy in this event loop, or in a thread with one of its own.

    Args:
        make: Makes the proxy, in the event loop that it belongs to.
        in_thread: Whether that is another one than the caller's.
    """

    def __init__(self, make: Callable[[], ProxyControl], *, in_thread: bool) -> None:
        self._make = make
        self._in_thread = in_thread
        self._serving: ProxyControl | None = None
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

    def _known(self) -> tuple[ProxyControl, asyncio.AbstractEventLoop]:
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
