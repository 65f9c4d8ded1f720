import asyncio

import pytest
from lightning_apo.growth import concurrently


async def test_results_come_in_the_order_given() -> None:
    last_is_done = asyncio.Event()

    async def first() -> str:
        await last_is_done.wait()
        return "first"

    async def last() -> str:
        last_is_done.set()
        return "last"

    assert await concurrently([first(), last()]) == ["first", "last"]


async def test_one_failure_ends_the_others_and_is_raised_as_it_is() -> None:
    ended = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await concurrently([wait_for_ever(), fail(), wait_for_ever()])
    assert ended == [True, True]
