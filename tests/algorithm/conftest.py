import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from lightning_core.agent import LitAgent
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer

Running = Callable[..., AbstractAsyncContextManager[None]]


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
def running(store: InMemoryLightningStore) -> Running:
    """Let runners run an agent during a block."""
    tracer = OtelTracer()

    async def run(agent: LitAgent[Any], worker_id: int) -> None:
        runner = LitAgentRunner(tracer)
        with runner.run_context(agent=agent, store=store, worker_id=worker_id):
            await runner.iter()

    @asynccontextmanager
    async def running(agent: LitAgent[Any], *, n_runners: int = 2) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(run(agent, number)) for number in range(n_runners)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    return running
