"""What the tests of all packages share."""

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


ALONE = (
    "examples/test_training.py",
    "plugins/lightning-agentops/tests/test_frameworks.py",  # AgentOps patches what others may have imported before
    "plugins/lightning-http/tests/test_drain.py",
    "plugins/lightning-http/tests/test_processes",
    "plugins/lightning-http/tests/test_runner_command.py",
    "plugins/lightning-http/tests/test_store_command.py",
    "plugins/lightning-mongo/tests/test_outage.py",
    "plugins/lightning-proxy/tests/test_command.py",
    "tests/chaos/",
    "tests/cli/test_interrupt.py",
    "tests/cli/test_resume.py",
    "tests/trainer/test_signals.py",
)
"""Tests that send signals at moments, or kill processes: what else a machine does then changes what they see."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that have to run alone, so that the others can run on several processes."""
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(ALONE):
            item.add_marker("alone")
