"""Between the event loop and the trainer's thread, and the end of a training before its last step."""

import asyncio

import pytest
from lightning_verl.bridge import Bridge, Ending, Enough, Stopped


class Hanging:
    """What never comes to an end by itself."""

    def __init__(self) -> None:
        self.began, self.was_cancelled = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


async def test_the_thread_gets_what_a_coroutine_returns_or_raises() -> None:
    bridge = Bridge(asyncio.get_running_loop())

    async def answer() -> int:
        return 42

    async def refuse() -> int:
        raise ValueError("no")

    assert await asyncio.to_thread(lambda: bridge.call(answer())) == 42
    with pytest.raises(ValueError, match="no"):
        await asyncio.to_thread(lambda: bridge.call(refuse()))


async def test_stopping_ends_a_call_that_would_never_return() -> None:
    bridge, hanging = Bridge(asyncio.get_running_loop()), Hanging()
    calling = asyncio.create_task(asyncio.to_thread(lambda: bridge.call(hanging.run())))
    await hanging.began.wait()
    bridge.stop()
    with pytest.raises(Stopped):
        await calling
    await asyncio.wait_for(hanging.was_cancelled.wait(), 20)


async def test_the_first_reason_to_stop_is_raised_by_every_later_call_and_wait() -> None:
    bridge = Bridge(asyncio.get_running_loop())
    bridge.stop(RuntimeError("the store is gone"))
    bridge.stop()

    async def never() -> None:
        raise AssertionError("it must not run")

    with pytest.raises(RuntimeError, match="the store is gone"):
        bridge.call(never())
    with pytest.raises(RuntimeError, match="the store is gone"):
        bridge.wait(60)


async def test_a_wait_ends_when_something_has_happened_since_the_last_one() -> None:
    bridge = Bridge(asyncio.get_running_loop())
    bridge.tell()
    bridge.wait(60)
    waiting = asyncio.create_task(asyncio.to_thread(bridge.wait, 60))
    bridge.tell()
    await asyncio.wait_for(waiting, 20)


async def test_what_is_done_comes_to_its_end_unless_the_training_does() -> None:
    ending = Ending()

    async def measure() -> float:
        return 0.5

    assert await ending.unless(measure()) == 0.5
    ending.ask()
    assert ending.is_asked
    with pytest.raises(Enough, match="the training is to end before its last step"):
        await ending.unless(measure())


async def test_what_would_last_is_cancelled() -> None:
    ending, hanging = Ending(), Hanging()
    measuring = asyncio.create_task(ending.unless(hanging.run()))
    await hanging.began.wait()
    ending.ask()
    with pytest.raises(Enough):
        await measuring
    assert hanging.was_cancelled.is_set()


async def test_what_goes_wrong_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no rewards")

    with pytest.raises(ValueError, match="no rewards"):
        await Ending().unless(fail())


async def test_what_goes_wrong_as_the_training_is_to_end_is_not_told() -> None:
    ending = Ending()

    async def be_refused() -> None:
        ending.ask()
        raise ValueError("no rewards")

    with pytest.raises(Enough):
        await ending.unless(be_refused())
