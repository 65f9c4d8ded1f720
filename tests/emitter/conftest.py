from collections.abc import Iterator

import pytest

from lightning_core.tracer import OtelTracer


@pytest.fixture
def tracer() -> Iterator[OtelTracer]:
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        yield tracer
