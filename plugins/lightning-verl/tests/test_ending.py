"""The end of a training before its last step."""

import asyncio

import pytest
from lightning_verl.ending import Ending, Enough


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
    ending, began, was_cancelled = Ending(), asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    measuring = asyncio.create_task(ending.unless(hang()))
    await began.wait()
    ending.ask()
    with pytest.raises(Enough):
        await measuring
    assert was_cancelled.is_set()


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
