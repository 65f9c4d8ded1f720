import asyncio

import pytest
from lightning_apo.growth import concurrently


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
