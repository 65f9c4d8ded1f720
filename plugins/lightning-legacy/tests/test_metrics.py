"""The backends of metrics of agentlightning 0.3."""

import pytest
from lightning_core.utils.metrics import (
    ConsoleMetricsBackend,
    MultiMetricsBackend,
    PrometheusMetricsBackend,
    get_prometheus_registry,
)
from prometheus_client import REGISTRY, CollectorRegistry


async def test_the_console_tells_rates_and_percentiles_of_its_window():
    lines, now = list[str](), [100.0]
    console = ConsoleMetricsBackend(20.0, 10.0, write=lines.append, clock=lambda: now[0])
    backend = MultiMetricsBackend([console])
    backend.register_counter("calls", ("method", "status"), group_level=1)
    backend.register_histogram("seconds", ("method",))
    for number in range(1, 21):
        now[0] += 1
        await backend.inc_counter("calls", 2, {"method": "get", "status": str(number % 2)})
        await backend.observe_histogram("seconds", number, {"method": "get"})
    assert not backend.has_prometheus()
    assert lines == [
        "calls{method=get} 2/s  seconds p50=5 p95=9 p99=9",
        "calls{method=get} 2/s  seconds p50=10 p95=19 p99=19",
    ]


def test_several_have_the_registry_of_prometheus():
    prometheus = PrometheusMetricsBackend(CollectorRegistry())
    several = MultiMetricsBackend([ConsoleMetricsBackend(), prometheus])
    assert several.has_prometheus()
    assert several.registry is prometheus.registry
    assert get_prometheus_registry() is REGISTRY
    with pytest.raises(ValueError, match="no backends"):
        MultiMetricsBackend([])
