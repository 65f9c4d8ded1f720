import asyncio
import threading
from collections.abc import Sequence

import pytest

from lightning_core.concurrency import Batcher, EventLoopThread, in_daemon_thread
from lightning_core.errors import Fault, StoreUnavailable

pytestmark = pytest.mark.usefixtures("nothing_left_running")


async def name_of_thread() -> str:
    return threading.current_thread().name


async def test_coroutines_run_in_the_thread_until_it_is_stopped() -> None:
    thread = EventLoopThread("elsewhere")
    assert await asyncio.wrap_future(thread.submit(name_of_thread())) == "elsewhere"
    assert not thread.is_here
    waiting = thread.submit(asyncio.sleep(60))
    for _ in range(2):
        thread.stop()
    thread.join(20)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        thread.submit(name_of_thread())


async def test_a_machine_without_threads_is_no_failure_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Fault, match="the agent has no thread: can't start new thread"):
        in_daemon_thread(dict, name="agent")


@pytest.mark.parametrize("is_well", [True, False])
def test_last_thing_that_a_thread_does_is_awaited_and_its_error_is_kept(is_well: bool) -> None:
    done = []

    async def at_end() -> None:
        await asyncio.sleep(0)
        done.append(await name_of_thread())
        if not is_well:
            raise ValueError("at the end")

    thread = EventLoopThread("elsewhere", at_end=at_end)
    thread.stop()
    thread.join(20)
    assert done == ["elsewhere"]
    assert str(thread.ended.exception() or "") == ("" if is_well else "at the end")


class Doubler:
    def __init__(self, *, error: Exception | None = None) -> None:
        self.calls: list[list[int]] = []
        self._error = error

    async def __call__(self, numbers: list[int]) -> Sequence[int]:
        self.calls.append(numbers)
        await asyncio.sleep(0)
        if self._error is not None and 13 in numbers:
            raise self._error
        return [2 * number for number in numbers]


async def test_requests_that_come_together_are_one_call_of_a_limited_size() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler, max_size=3)
    first = asyncio.ensure_future(batcher.ask_all([1, 2, 3, 4]))
    await asyncio.sleep(0)
    assert await batcher.ask(5) == 10
    assert await first == [2, 4, 6, 8]
    assert doubler.calls == [[1, 2, 3], [4, 5]]


async def test_request_fails_alone_unless_the_store_is_gone() -> None:
    odd = ValueError("odd")
    answers = await asyncio.gather(*map(Batcher(Doubler(error=odd)).submit, (1, 13, 3)), return_exceptions=True)
    assert answers == [2, odd, 6]
    gone = StoreUnavailable("gone")
    answers = await asyncio.gather(*map(Batcher(Doubler(error=gone)).submit, (1, 13, 3)), return_exceptions=True)
    assert answers == [gone] * 3


async def test_cancelled_batcher_leaves_no_request_waiting() -> None:
    never = asyncio.Event()

    async def wait(requests: list[int]) -> list[int]:
        await never.wait()
        return requests

    batcher = Batcher(wait, max_size=1)
    waiting = [batcher.submit(number) for number in range(2)]
    await asyncio.sleep(0)
    await batcher.cancel()
    await asyncio.wait(waiting, timeout=20)
    assert all(each.cancelled() for each in waiting)
