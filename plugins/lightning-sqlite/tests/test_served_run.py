"""Which run of a file a server goes on with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import LightningStore
from lightning_core.store.run_end import note_served, served_run

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@asynccontextmanager
async def opened(path: Path, run_id: str | None = None) -> AsyncIterator[LightningStore]:
    store = SqliteLightningStore(path, run_id=run_id)
    try:
        yield store
    finally:
        await store.aclose()


async def chosen(path: Path) -> str | None:
    """Return the run that a server would go on with, None for a new one."""
    async with opened(path) as store:
        served, goes_on = await served_run(store)
        assert goes_on == (served.run_id != store.run_id)
        return served.run_id if goes_on else None


async def test_a_file_without_runs_gets_a_new_one(path: Path) -> None:
    assert await chosen(path) is None


async def test_a_run_that_was_served_is_found_again_when_nothing_else_was_written(path: Path) -> None:
    async with opened(path) as store:
        await note_served(store)
    assert await chosen(path) == store.run_id


async def test_of_runs_that_nobody_served_it_is_the_latest(path: Path) -> None:
    for run_id in ("run-a", "run-b"):
        async with opened(path, run_id) as store:
            await store.enqueue_rollout(1)
    assert await chosen(path) == "run-b"


async def test_the_run_that_was_served_last_comes_before_newer_ones(path: Path) -> None:
    async with opened(path, "run-a") as store:
        await note_served(store)
        await store.for_run("run-b").enqueue_rollout(1)
        await note_served(store.for_run("run-c"))
        await note_served(store)
    assert await chosen(path) == "run-a"


async def test_runs_that_have_ended_are_over_until_they_begin_again(path: Path) -> None:
    async with opened(path, "run-a") as store:
        await store.enqueue_rollout(1)
        await note_served(store.for_run("run-b"))
        await store.for_run("run-b").end_run()
    assert await chosen(path) == "run-a"
    async with opened(path, "run-a") as store:
        await store.end_run()
    assert await chosen(path) is None
    async with opened(path, "run-a") as store:
        await store.begin_run()
    assert await chosen(path) == "run-a"
