"""A store that belongs to the event loop of one thread, used from the loops of others."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from lightning_core.errors import StoreClosed
from lightning_core.store import InMemoryLightningStore, LightningStore, LightningStoreThreaded, StoreFacade
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import OPERATIONS, LightningStoreCapabilities
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing import FakeClock, StoreSuite
from lightning_core.testing.store.base import present, soon
from lightning_core.types import RolloutConfig

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="loop of the store")
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread.start()
        assert running.wait(timeout=30)

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))

    async def tasks(self) -> int:
        """How many tasks the loop has, but for the one that counts them."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return await self.run(count())

    def end(self) -> None:
        """End as `asyncio.run` does: what still runs is cancelled."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=30)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    other = LoopThread()
    try:
        yield other
    finally:
        other.end()


class ClockOfAnotherLoop(FakeClock):
    """A fake clock that a test moves from its own loop."""

    def __init__(self, home: LoopThread) -> None:
        super().__init__()
        self._home = home

    async def advance(self, seconds: float) -> None:
        await self._home.run(super().advance(seconds))

    async def stand_still(self, seconds: float) -> None:
        await self._home.run(super().stand_still(seconds))

    async def until_waiting(self, waits: int = 1) -> None:
        await self._home.run(super().until_waiting(waits))


class LoopBoundBackend(MemoryBackend):
    """Refuses to be called from any other loop than its own."""

    def __init__(self, home: LoopThread) -> None:
        super().__init__()
        self.home = home

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": False, "async_safe": True}


def _bound(operation: Callable[..., Any]) -> Callable[..., Any]:
    async def bound(self: LoopBoundBackend, *args: Any, **options: Any) -> Any:
        assert asyncio.get_running_loop() is self.home.loop, f"{operation.__name__} was called from another loop"
        return await operation(self, *args, **options)

    return bound


for _name in StoreBackend.__abstractmethods__:
    if inspect.iscoroutinefunction(_operation := getattr(MemoryBackend, _name)):
        setattr(LoopBoundBackend, _name, _bound(_operation))


class TestLightningStoreThreaded(StoreSuite):
    @pytest.fixture
    def home(self) -> Iterator[LoopThread]:
        with loop_thread() as home:
            yield home

    @pytest.fixture
    def clock(self, home: LoopThread) -> FakeClock:
        return ClockOfAnotherLoop(home)

    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        assert isinstance(clock, ClockOfAnotherLoop)
        store = StoreFacade(LoopBoundBackend(clock._home), clock=clock, run_id=run_id)
        return LightningStoreThreaded(store, loop=clock._home.loop)


async def test_every_call_of_the_interface_is_forwarded() -> None:
    for name in OPERATIONS:
        forwarded = getattr(LightningStoreThreaded, name)
        assert inspect.iscoroutinefunction(forwarded)
        assert inspect.signature(forwarded) == inspect.signature(getattr(LightningStore, name))


async def test_a_call_in_the_stores_own_loop_goes_straight_through() -> None:
    store = LightningStoreThreaded(InMemoryLightningStore(), loop=asyncio.get_running_loop())
    waiter = asyncio.create_task(store.dequeue_rollout(wait_seconds=None))
    await asyncio.sleep(0)
    queued = await store.enqueue_rollout("a")
    claimed = present(await soon(waiter))
    assert claimed.rollout_id == queued.rollout_id
    await store.aclose()


async def test_hundreds_of_waits_need_no_threads() -> None:
    with loop_thread() as home:
        store = LightningStoreThreaded(InMemoryLightningStore(), loop=home.loop)
        threads = threading.active_count()
        waiters = [asyncio.create_task(store.dequeue_rollout(wait_seconds=None)) for _ in range(300)]
        for number in range(300):
            await store.enqueue_rollout(number)
        assert threading.active_count() <= threads
        claimed = await soon(asyncio.gather(*waiters))
        assert sorted(item.input for item in claimed if item is not None) == list(range(300))


async def test_a_cancelled_call_is_cancelled_in_the_stores_loop() -> None:
    with loop_thread() as home:
        store = LightningStoreThreaded(InMemoryLightningStore(), loop=home.loop)
        started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=1000))
        waiters = [
            asyncio.create_task(store.dequeue_rollout(wait_seconds=None)),
            asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id])),
        ]
        await store.statistics()  # by then the store has got the calls before it
        assert await home.tasks() >= len(waiters)
        for waiter in waiters:
            waiter.cancel()
        outcomes = await soon(asyncio.gather(*waiters, return_exceptions=True))
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2
        for _ in range(100):  # turns of the other loop
            if await home.tasks() == 0:
                break
        assert await home.tasks() == 0
        await store.enqueue_rollout("b")
        assert (await store.query_rollouts(status_in=["queuing"])).total == 1


async def test_what_is_under_way_when_the_loop_ends_is_closed_and_not_cancelled() -> None:
    with loop_thread() as home:
        store = LightningStoreThreaded(InMemoryLightningStore(run_id="run-1"), loop=home.loop)
        waiters = [asyncio.create_task(store.dequeue_rollout(wait_seconds=None)) for _ in range(3)]
        await store.statistics()
        home.end()
        for waiter in waiters:
            with pytest.raises(StoreClosed, match="the event loop of the store of run run-1 does not run any more"):
                await soon(waiter)


@pytest.mark.parametrize("looked_before", [False, True])
async def test_a_call_to_a_loop_that_has_ended_is_refused(looked_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop_thread() as home:
        store = LightningStoreThreaded(InMemoryLightningStore(run_id="run-1"), loop=home.loop)
        await store.enqueue_rollout("a")
        home.end()
        if looked_before:  # it ended after the look, and before the call
            monkeypatch.setattr(home.loop, "is_running", lambda: True)
        for call in (store.enqueue_rollout("b"), store.aclose(), store.for_run("another-run").statistics()):
            with pytest.raises(StoreClosed, match="does not run any more"):
                await call


async def test_a_call_has_the_context_of_its_caller() -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")

    class Curious(InMemoryLightningStore):
        async def load_state(self, name: str) -> Any:
            return caller.get()

    with loop_thread() as home:
        store = LightningStoreThreaded(Curious(), loop=home.loop)
        caller.set("me")
        assert await store.load_state("apo") == "me"


async def test_it_can_do_what_its_store_can_and_threads() -> None:
    class ForOneLoop(InMemoryLightningStore):
        @property
        def capabilities(self) -> LightningStoreCapabilities:
            return {"async_safe": True}

    assert LightningStoreThreaded(ForOneLoop()).capabilities == {"thread_safe": True, "async_safe": True}
