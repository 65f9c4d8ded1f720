import asyncio
import threading
from collections.abc import AsyncIterator

import pytest


@pytest.fixture
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail a test that leaves a task or a thread behind."""
    before = set(threading.enumerate())
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):  # of the loop's own executor, which ends with the loop
            thread.join(timeout=5)
            assert not thread.is_alive(), f"{thread.name} still runs"
