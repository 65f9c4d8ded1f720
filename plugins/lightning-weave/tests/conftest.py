import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine
from lightning_weave import WeaveTracer, private

from lightning_core.store import InMemoryLightningStore

sys.path.insert(0, str(Path(__file__).parent))

private.import_weave()  # before a test does, which would have error reports sent when the tests are over


@pytest.fixture
def tracer() -> Iterator[WeaveTracer]:
    tracer = WeaveTracer()
    with tracer.lifespan():
        yield tracer


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(["Paris."]) as engine:
        yield engine
