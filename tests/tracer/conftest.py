import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace as otel
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from lightning_core.emitter import get_active_sink
from lightning_core.tracer import OtelTracer
from lightning_core.types import Span


class RecordingStore:
    """As much of a store as a tracer uses."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[Span]] = defaultdict(list)
        self.batches: list[list[str]] = []
        self.errors: list[Exception] = []
        """Raised by the next calls, one each."""
        self.gate = asyncio.Event()
        """Calls wait for it."""
        self.gate.set()
        self.entered = asyncio.Event()
        """Set when a call has begun."""
        self.saw_a_trace = False
        """Whether a call ran where its own I/O would be traced."""

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        self.batches.append([span.name for span in spans])
        self.entered.set()
        self.saw_a_trace |= (
            get_active_sink() is not None
            or otel.get_current_span() is not otel.INVALID_SPAN
            or is_instrumentation_enabled()
        )
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        stored = []
        for span in spans:
            kept = self.attempts[span.attempt_id]
            if span.span_id not in {known.span_id for known in kept}:
                kept.append(span.model_copy(update={"sequence_id": len(kept) + 1}))
                stored.append(kept[-1])
        return stored


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore()


@pytest.fixture
def tracer() -> Iterator[OtelTracer]:
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        yield tracer


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions for one test: `install("a-dist", {"group": {"name": "mod:attr"}}, mod=source)`."""
    modules: list[str] = []

    def install(distribution: str, entry_points: dict[str, dict[str, str]], **sources: str) -> None:
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        groups = [
            "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in offers.items())])
            for group, offers in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(groups))
        for module, source in sources.items():
            (site / f"{module}.py").write_text(source)
            modules.append(module)
        monkeypatch.syspath_prepend(site)

    yield install
    for module in modules:
        sys.modules.pop(module, None)
