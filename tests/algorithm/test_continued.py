"""Work that was cut off keeps its key; work that came to its end gets a new one."""

import asyncio
from contextlib import nullcontext

import pytest

from lightning_core.algorithm.batch import continued
from lightning_core.errors import InvalidRequest, NoRewards, NotFound, StoreUnavailable
from lightning_core.store import InMemoryLightningStore


async def key_of(store: InMemoryLightningStore, *, of: int = 1, raises: BaseException | None = None) -> str:
    key = ""
    with nullcontext() if raises is None else pytest.raises(type(raises)):
        async with continued(store, "work", of=of) as key:
            if raises is not None:
                raise raises
    return key


@pytest.mark.parametrize("error", [asyncio.CancelledError(), StoreUnavailable("no answer"), EOFError("a pipe")])
async def test_work_that_was_cut_off_is_continued_under_its_key(store: InMemoryLightningStore, error: BaseException):
    first = await key_of(store, raises=error)
    assert await key_of(store) == first


@pytest.mark.parametrize(
    "error", [None, NoRewards("not one"), NotFound("no rollout ro-1"), InvalidRequest("other arguments")]
)
async def test_work_that_came_to_its_end_or_failed_is_begun_anew(
    store: InMemoryLightningStore, error: Exception | None
):
    first = await key_of(store, raises=error)
    second = await key_of(store)
    assert second != first
    assert second.startswith(first) == (error is not None), "what is kept by the key is gone on with after a failure"


async def test_other_work_has_another_key(store: InMemoryLightningStore):
    first = await key_of(store, of=1, raises=asyncio.CancelledError())
    assert await key_of(store, of=2) != first
