import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteLightningStore]:
    """A store that is closed at the end of the test."""
    store = SqliteLightningStore(path, run_id="run-1")
    yield store
    await store.aclose()


@pytest.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail a test that leaves a task or a thread of a store behind."""
    before = set(threading.enumerate())
    yield
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    assert "lightning-sqlite" not in [thread.name for thread in set(threading.enumerate()) - before]
