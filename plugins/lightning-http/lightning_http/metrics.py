"""What Prometheus reads: the backend of metrics, which agentlightning 0.3 has in `utils.metrics`, and the page."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lightning_core.store.base import LightningStore, LightningStoreStatistics
from lightning_core.store.tracking import LATENCY_BUCKETS, MetricsBackend, counting
from lightning_core.types import Worker
from lightning_core.types.text import well_formed

__all__ = ["LabelDict", "PrometheusMetricsBackend"]

LabelDict = dict[str, str]


class PrometheusMetricsBackend(MetricsBackend):
    """Hands everything to prometheus_client; the dots of a name become underscores.

    Args:
        registry: Where the metrics are; None for that of the process, whose metrics all such backends share.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = REGISTRY if registry is None else registry
        self._metrics: dict[str, Any] = _of_process if registry is None else {}

    def has_prometheus(self) -> bool:
        """Prometheus can read it."""
        return True

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        """See `MetricsBackend.register_counter`."""
        self._register(Counter, name, label_names)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        """See `MetricsBackend.register_histogram`."""
        self._register(Histogram, name, label_names, buckets=tuple(LATENCY_BUCKETS if buckets is None else buckets))

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        """See `MetricsBackend.inc_counter`."""
        self._find(name, labels).inc(amount)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        """See `MetricsBackend.observe_histogram`."""
        self._find(name, labels).observe(value)

    def _register(self, kind: Any, name: str, label_names: Sequence[str] | None, **options: Any) -> None:
        if name not in self._metrics:
            about, labels = f"{name}, a {kind.__name__.lower()}.", tuple(label_names or ())
            self._metrics[name] = kind(name.replace(".", "_"), about, labels, registry=self.registry, **options)

    def _find(self, name: str, labels: LabelDict | None) -> Any:
        if name not in self._metrics:
            raise ValueError(f"{name!r} is not a registered metric; call register_counter or register_histogram first")
        return self._metrics[name].labels(**labels) if labels else self._metrics[name]


_of_process: dict[str, Any] = {}

_LABELS = ("path", "method", "status")

_QUEUED = ("queuing", "requeuing")

GONE_SECONDS = 600.0
"""A worker that was silent for longer has no values of its own on the page."""

SLOW_SECONDS = 0.5
SELDOM = 20.0
"""A store that needs longer to count what it holds, as a database does, counts after so many times as long again."""


class Metrics:
    """Counts the requests of one server, and makes its page.

    Args:
        tracker: Where they are counted; None for a registry of the server's own.
    """

    def __init__(self, tracker: MetricsBackend | None = None) -> None:
        self._tracker = PrometheusMetricsBackend(CollectorRegistry()) if tracker is None else tracker
        self._tracker.register_counter("agl.http.total", _LABELS, group_level=2)
        self._tracker.register_histogram("agl.http.latency", _LABELS, LATENCY_BUCKETS, group_level=2)
        self._in_flight = 0
        self._statistics = LightningStoreStatistics()
        self._counting = asyncio.Lock()
        self._count_again = 0.0

    def begin(self) -> None:
        """A request has come."""
        self._in_flight += 1

    async def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered.

        Args:
            method: Its method.
            route: The route's template, never a path with ids in it.
            status: The answer's status; 499 where the client was gone.
            seconds: How long it took.
        """
        self._in_flight -= 1
        labels = {"path": route, "method": method, "status": str(status)}
        with counting():
            await self._tracker.inc_counter("agl.http.total", labels=labels)
            await self._tracker.observe_histogram("agl.http.latency", seconds, labels=labels)

    async def page(self, store: LightningStore) -> bytes:
        """Return what was counted, and how the store and its workers stand, as Prometheus reads it."""
        workers = await store.query_workers()
        if not self._statistics or not self._counting.locked():  # else it shows the last count
            async with self._counting:
                if (began := time.monotonic()) >= self._count_again:
                    self._statistics = await store.statistics()
                    took = time.monotonic() - began
                    self._count_again = began + (took * SELDOM if took > SLOW_SECONDS else 0.0)
        standing = _standing(self._statistics, workers, time.time())
        now = generate_latest(_Now([("agl_http_in_flight", {}, self._in_flight), *standing]))
        counted = getattr(self._tracker, "registry", None)
        return now if counted is None else generate_latest(counted) + now


_Value = tuple[str, Mapping[str, str], float]
"""A metric, its labels, and its value."""


_ABOUT = "See docs/store-server.md."


class _Now(Collector):
    """The gauges of one page."""

    def __init__(self, values: Iterable[_Value]) -> None:
        self._values = values

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, labels, value in self._values:
            family = families.setdefault(name, GaugeMetricFamily(name, _ABOUT, labels=tuple(labels)))
            family.add_metric(tuple(labels.values()), value)
        return families.values()


def _standing(statistics: LightningStoreStatistics, workers: Sequence[Worker], now: float) -> Iterator[_Value]:
    for key, value in statistics.items():
        if key.startswith("total_") and isinstance(value, int):
            yield "agl_store_records", {"kind": key.removeprefix("total_")}, value
    yield "agl_store_uptime_seconds", {}, statistics.get("uptime", 0.0)
    live = statistics.get("live_rollouts", {})
    for status in ("queuing", "requeuing", "preparing", "running"):
        yield "agl_rollouts_live", {"status": status}, live.get(status, 0)
    yield "agl_queue_depth", {}, sum(number for status, number in live.items() if status in _QUEUED)
    for status in ("idle", "busy", "unknown"):
        yield "agl_workers", {"status": status}, sum(worker.status == status for worker in workers)
    heard = [(worker.last_heartbeat_time, worker) for worker in workers if worker.last_heartbeat_time is not None]
    for last, worker in sorted(heard, key=lambda each: each[0]):
        if now - last > GONE_SECONDS:
            continue
        host = well_formed(str((worker.heartbeat_stats or {}).get("host", "")))
        yield "agl_worker_silence_seconds", {"worker": worker.worker_id, "host": host}, now - last
