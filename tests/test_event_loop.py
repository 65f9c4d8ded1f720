"""The event loop of a run, which can be left whatever still runs in it."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest

from lightning_core.concurrency import event_loop


def test_block_runs_coroutines_and_the_loop_is_closed_after_it() -> None:
    async def current_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with event_loop() as runner:
        loop = runner.run(current_loop())
        assert runner.run(current_loop()) is loop
    assert loop.is_closed()


def test_tasks_that_are_left_are_cancelled_and_may_clean_up() -> None:
    cleaned_up: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append("task")

    async def main() -> None:
        tasks.append(asyncio.create_task(left_over()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    with event_loop() as runner:
        runner.run(main())
    assert cleaned_up == ["task"]
    assert tasks[0].cancelled()


def test_task_that_refuses_to_end_is_left_behind_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lightning_core.concurrency.STOP_SECONDS", 0.05)
    cancelled: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("once")
        await asyncio.Event().wait()

    async def main() -> None:
        tasks.append(asyncio.create_task(stubborn(), name="the stubborn one"))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    with event_loop() as runner:
        runner.run(main())
    assert cancelled == ["once"]
    assert "lightning.task_abandoned task=the stubborn one" in caplog.text
    tasks.clear()
    gc.collect()  # so that asyncio's own complaint about it does not come in the middle of another test


def test_async_generators_that_are_left_are_closed() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("generator")

    async def main() -> None:
        kept.append(numbers())
        assert await anext(kept[0]) == 1

    kept: list[AsyncIterator[int]] = []
    with event_loop() as runner:
        runner.run(main())
    assert closed == ["generator"]


def test_call_that_hangs_in_a_thread_is_not_waited_for() -> None:
    go, threads = threading.Event(), list[threading.Thread]()

    def hang(loop: asyncio.AbstractEventLoop, started: asyncio.Event) -> None:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(started.set)
        go.wait(20)

    async def main() -> None:
        started = asyncio.Event()
        call = asyncio.create_task(asyncio.to_thread(hang, asyncio.get_running_loop(), started))
        await started.wait()
        call.cancel()

    with event_loop() as runner:
        runner.run(main())
    assert threads[0].is_alive()
    assert threads[0].daemon
    go.set()
    threads[0].join(20)
    assert not threads[0].is_alive()
