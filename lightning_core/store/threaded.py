"""Stores that hand their calls to another one: any store, from any thread and any event loop."""

import asyncio
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from lightning_core.concurrency import EventLoopThread
from lightning_core.errors import InvalidRequest, StoreClosed
from lightning_core.store.base import OPERATIONS, LightningStore, LightningStoreCapabilities
from lightning_core.types import Attempt

if TYPE_CHECKING:
    # The methods are made below, in a loop. For a type checker, take them from where they are written out.
    from lightning_core.store.facade import StoreFacade as _Complete
else:
    _Complete = LightningStore


class ForwardingStore(_Complete):
    """Calls the methods of the store that `target` returns, each through `_call`."""

    @abstractmethod
    def target(self) -> LightningStore:
        """Return the store to call."""

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call an operation of that store. A subclass does more for some of them."""
        return await getattr(self.target(), name)(**arguments)

    @property
    def run_id(self) -> str:
        return self.target().run_id

    def for_run(self, run_id: str) -> LightningStore:
        return self.target().for_run(run_id)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.target().capabilities

    @property
    def lease_seconds(self) -> float | None:
        return self.target().lease_seconds

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        return self.target().keeping_deadlines()

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        return self.target().watch(listener)

    def otlp_traces_endpoint(self) -> str:
        return self.target().otlp_traces_endpoint()

    def attempt_key(self, attempt: Attempt) -> str | None:
        return self.target().attempt_key(attempt)


def _forward(name: str) -> Any:
    method = getattr(LightningStore, name)
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    async def call(self: ForwardingStore, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            inspect.signature(method).bind(self, *args, **kwargs)  # raises a TypeError that says what is wrong
        return await self._call(name, dict(zip(names, args, strict=False)) | kwargs)

    return call


for _name in OPERATIONS:
    setattr(ForwardingStore, _name, _forward(_name))


class LightningStoreThreaded(ForwardingStore):
    """Lets a store that belongs to one event loop be used from others.

    Every call runs in the loop of the store, one after the other or interleaved as that loop has it. The caller's loop
    waits without a thread; cancelling the call cancels it there. A call made in the store's own loop goes straight
    through, so that no call waits for itself. `for_run`, which waits for nothing, runs where it is called.

    The loop has to outlive the calls: once it is closed, and for what it cancels when it ends, callers get
    `StoreClosed`. A loop that is only stopped never answers; close the store before. Where there is no loop, a store
    that is not safe for any use runs in a thread of its own until `aclose`.

    Calls of a store that is not `async_safe` run one after the other, but for those that wait.

    Args:
        store: The store.
        loop: The event loop that the store belongs to; None for the running one, if any. A store that is safe for any
            use belongs to none: then calls run where they are made.

    Raises:
        InvalidRequest: When `store` is none.
    """

    def __init__(self, store: LightningStore, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if not isinstance(store, LightningStore):
            raise InvalidRequest(f"a LightningStore is to be used from other threads; got {type(store).__name__}")
        self.store = store
        self._turn = None if store.capabilities.get("async_safe") else asyncio.Lock()
        self._thread: EventLoopThread | None = None
        if loop is None and (self._turn is not None or not store.capabilities.get("thread_safe")):
            with suppress(RuntimeError):  # none is running
                loop = asyncio.get_running_loop()
            if loop is None:
                self._thread = EventLoopThread("store")
                loop = self._thread.loop
        self._loop = loop

    def target(self) -> LightningStore:
        return self.store

    def for_run(self, run_id: str) -> LightningStore:
        return LightningStoreThreaded(self.store.for_run(run_id), loop=self._loop)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True, "async_safe": True}

    async def aclose(self) -> None:
        try:
            await self._call("aclose", {})
        finally:
            if self._thread is not None:
                self._thread.stop()

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self._loop is None or asyncio.get_running_loop() is self._loop:
            return await self._call_there(name, arguments)
        if not self._loop.is_running():
            raise self._without_loop()
        call = self._call_there(name, arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as exc:
            call.close()
            if self._loop.is_closed():  # since we looked
                raise self._without_loop() from exc
            raise
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The caller was not cancelled: the other loop came to its end, and cancelled what still ran there.
            raise self._without_loop() from None

    async def _call_there(self, name: str, arguments: dict[str, Any]) -> Any:
        waits = name == "wait_for_rollouts" or arguments.get("wait_seconds", 0) != 0
        async with nullcontext() if self._turn is None or waits else self._turn:
            return await super()._call(name, arguments)

    def _without_loop(self) -> StoreClosed:
        return StoreClosed(f"the event loop of the store of run {self.run_id} does not run any more")
