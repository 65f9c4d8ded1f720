import asyncio
import gc
import threading

import pytest

from lightning_core.runner import heartbeats as pacemaker_module
from lightning_core.runner.heartbeats import Pacemaker

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class Work:
    """Tells where it runs, and that it was cancelled."""

    def __init__(self) -> None:
        self.began: list[threading.Thread] = []
        self.ended: list[threading.Thread] = []
        self._begun = threading.Semaphore(0)

    async def __call__(self) -> None:
        self.began.append(threading.current_thread())
        self._begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(threading.current_thread())

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.acquire, timeout=20)


async def test_all_users_share_one_thread_and_each_ends_its_own_work() -> None:
    pacemaker, works = Pacemaker(), [Work(), Work()]
    async with pacemaker.running(works[0]):
        async with pacemaker.running(works[1]):
            for work in works:
                await work.has_begun()
        assert works[1].ended == works[1].began
        assert works[0].ended == []

    assert works[0].ended == works[0].began == works[1].began
    assert works[0].began[0] is not threading.current_thread()


async def test_thread_ends_with_its_last_user_and_comes_back_for_the_next() -> None:
    pacemaker, threads = Pacemaker(), []
    for _ in range(2):
        work = Work()
        async with pacemaker.running(work):
            await work.has_begun()
        threads += work.ended
        assert not work.ended[0].is_alive()

    assert threads[0] is not threads[1]


async def test_work_whose_end_nobody_waits_for_is_ended_with_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine the thread may be late."""
    monkeypatch.setattr(pacemaker_module, "END_SECONDS", 0)
    pacemaker, work = Pacemaker(), Work()
    thread = pacemaker.acquire()
    blocked = threading.Event()
    async with pacemaker.running(work):
        await work.has_begun()
        thread.loop.call_soon_threadsafe(blocked.wait, 20)
    pacemaker.release()
    monkeypatch.setattr(pacemaker_module, "END_SECONDS", 20)
    blocked.set()
    work.began[0].join(timeout=20)
    gc.collect()

    assert work.ended == work.began
    assert "Task was destroyed but it is pending" not in caplog.text


async def test_process_that_was_forked_makes_a_thread_of_its_own() -> None:
    pacemaker, work = Pacemaker(), Work()
    pacemaker.acquire()
    of_the_parent = pacemaker.acquire()
    pacemaker.release()
    pacemaker.forget()
    async with pacemaker.running(work):
        await work.has_begun()

    of_the_parent.stop()
    assert len(work.ended) == 1
