"""Backends of metrics: Prometheus, a log of what happens now, and several at once. 0.3 has them as `utils.metrics`."""

import logging
import math
import os
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from lightning_core.errors import ConfigError
from lightning_core.store.tracking import LATENCY_BUCKETS, MetricsBackend, tracked

__all__ = [
    "ConsoleMetricsBackend",
    "LabelDict",
    "MetricsBackend",
    "MultiMetricsBackend",
    "PrometheusMetricsBackend",
    "get_prometheus_registry",
    "setup_multiprocess_prometheus",
    "shutdown_metrics",
    "tracked",
]

logger = logging.getLogger(__name__)

LabelDict = dict[str, str]

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder through which processes share their counts. It is set before prometheus_client is imported."""


class _Metric(NamedTuple):
    """A metric that was registered."""

    kind: str
    label_names: tuple[str, ...]
    buckets: tuple[float, ...]
    group_level: int | None
    collector: Any = None


class _Registered(MetricsBackend):
    """Knows the metrics that are registered, and refuses others."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self._register(name, _Metric("counter", tuple(label_names or ()), (), group_level))

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        bounds = tuple(LATENCY_BUCKETS if buckets is None else buckets)
        self._register(name, _Metric("histogram", tuple(label_names or ()), bounds, group_level))

    def _register(self, name: str, metric: _Metric) -> None:
        known = self._metrics.get(name)
        if known is None:
            self._metrics[name] = metric._replace(collector=self._collector(name, metric))
        elif known[:3] != metric[:3]:
            has = f"a {known.kind} with the labels {known.label_names} and buckets {known.buckets}"
            raise ValueError(f"metric {name!r} is registered as {has}; got {metric[:3]}")

    def _collector(self, name: str, metric: _Metric) -> Any:
        return None

    def _find(self, kind: str, name: str, labels: LabelDict | None) -> tuple[_Metric, tuple[str, ...]]:
        """Return a metric and the values of its labels."""
        metric, given = self._metrics.get(name), labels or {}
        if metric is None or metric.kind != kind:
            raise ValueError(f"{name!r} is not a registered {kind}; call register_{kind} first")
        if given.keys() != set(metric.label_names):
            raise ValueError(f"{kind} {name!r} has the labels {metric.label_names}; got {tuple(given)}")
        return metric, tuple(given[each] for each in metric.label_names)


class ConsoleMetricsBackend(_Registered):
    """Writes a line from time to time: rates per second of counters, and percentiles of histograms.

    It keeps each value of the window. A line is written by the first change after the interval; without changes there
    is none.

    Args:
        window_seconds: How far back a line looks; None for all that was recorded.
        log_interval_seconds: The least time between two lines.
        group_level: How many labels, the first ones, are told apart; None for what each metric says.
        write: Takes a line; None for the log, at level INFO.
        clock: Seconds, from any point in time.
    """

    def __init__(
        self,
        window_seconds: float | None = 60.0,
        log_interval_seconds: float = 10.0,
        group_level: int | None = None,
        *,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._window = math.inf if window_seconds is None else window_seconds
        self._interval = log_interval_seconds
        self._group_level = group_level
        self._write = logger.info if write is None else write
        self._clock = clock
        self._began = self._last = clock()
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[str, ...]], deque[tuple[float, float]]] = defaultdict(deque)

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        self._record("counter", name, amount, labels)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        self._record("histogram", name, value, labels)

    def _record(self, kind: str, name: str, value: float, labels: LabelDict | None) -> None:
        _, label_values = self._find(kind, name, labels)
        now = self._clock()
        with self._lock:
            self._values[name, label_values].append((now, value))
            if now - self._last < self._interval:
                return
            self._last = now
            line = self._line(now)
        self._write(line)

    def _line(self, now: float) -> str:
        groups: dict[str, list[float]] = defaultdict(list)
        kinds: dict[str, str] = {}
        for (name, label_values), kept in list(self._values.items()):
            while kept and kept[0][0] < now - self._window:
                kept.popleft()
            if not kept:
                del self._values[name, label_values]
                continue
            metric = self._metrics[name]
            level = (metric.group_level if self._group_level is None else self._group_level) or 0
            shown = zip(metric.label_names[:level], label_values, strict=False)
            labels = ", ".join(f"{label}={value}" for label, value in shown)
            title = f"{name}{{{labels}}}" if labels else name
            groups[title] += [value for _, value in kept]
            kinds[title] = metric.kind
        seconds = max(min(self._window, now - self._began), 1e-9)
        return "  ".join(
            f"{title} {sum(values) / seconds:.4g}/s" if kinds[title] == "counter" else f"{title} {_percentiles(values)}"
            for title, values in sorted(groups.items())
        )


def _percentiles(values: list[float]) -> str:
    """Return three percentiles, each a value that was recorded."""
    ordered = sorted(values)
    return " ".join(f"p{each}={ordered[math.ceil(each / 100 * len(ordered)) - 1]:.3g}" for each in (50, 95, 99))


class PrometheusMetricsBackend(_Registered):
    """Hands everything to prometheus_client; the dots of a name become underscores.

    Args:
        registry: Where the metrics are; None for that of the process, whose metrics all such backends share.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        make_shared_folder()
        self.registry = REGISTRY if registry is None else registry
        if registry is None:
            self._metrics = _of_process

    def has_prometheus(self) -> bool:
        return True

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        metric, values = self._find("counter", name, labels)
        (metric.collector.labels(*values) if values else metric.collector).inc(amount)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        metric, values = self._find("histogram", name, labels)
        (metric.collector.labels(*values) if values else metric.collector).observe(value)

    def _collector(self, name: str, metric: _Metric) -> Any:
        plain, about = name.replace(".", "_"), f"{name}, a {metric.kind}."
        if metric.kind == "counter":
            return Counter(plain, about, metric.label_names, registry=self.registry)
        return Histogram(plain, about, metric.label_names, registry=self.registry, buckets=metric.buckets)


_of_process: dict[str, _Metric] = {}


class MultiMetricsBackend(MetricsBackend):
    """Hands everything to several backends, one after the other.

    Raises:
        ValueError: Without any backend.
    """

    def __init__(self, backends: Sequence[MetricsBackend]) -> None:
        if not backends:
            raise ValueError("MultiMetricsBackend has no backends; give at least one")
        self._backends = tuple(backends)

    @property
    def registry(self) -> CollectorRegistry | None:
        """The registry of the first backend that has one."""
        return next(filter(None, (getattr(backend, "registry", None) for backend in self._backends)), None)

    def has_prometheus(self) -> bool:
        return any(backend.has_prometheus() for backend in self._backends)

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        for backend in self._backends:
            backend.register_counter(name, label_names, group_level)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        for backend in self._backends:
            backend.register_histogram(name, label_names, buckets, group_level)

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        for backend in self._backends:
            await backend.inc_counter(name, amount, labels)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        for backend in self._backends:
            await backend.observe_histogram(name, value, labels)


_folder: tempfile.TemporaryDirectory[str] | None = None


def setup_multiprocess_prometheus() -> None:
    """Name a folder for the counts of several processes, gone with this one; one that is named already stays."""
    global _folder
    if MULTIPROCESS_VARIABLE not in os.environ:
        _folder = tempfile.TemporaryDirectory()
        os.environ[MULTIPROCESS_VARIABLE] = _folder.name


def make_shared_folder() -> None:
    """Make the folder in which processes share their counts, where one is named.

    Raises:
        ConfigError: When it cannot be made.
    """
    if folder := os.environ.get(MULTIPROCESS_VARIABLE):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as exc:
            raise ConfigError(f"{MULTIPROCESS_VARIABLE} is {folder!r}, which cannot be made: {exc}") from exc


def get_prometheus_registry() -> CollectorRegistry:
    """Return the registry of the process; one of all processes that share a folder, where that is named."""
    if MULTIPROCESS_VARIABLE not in os.environ:
        return REGISTRY
    from prometheus_client import multiprocess  # late, as it needs the folder

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def shutdown_metrics(server: Any = None, worker: Any = None, *args: Any, **kwargs: Any) -> None:
    """Let Prometheus know that a worker process is gone, as gunicorn's hook `child_exit` has it."""
    if MULTIPROCESS_VARIABLE in os.environ:
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(getattr(worker, "pid", os.getpid()))  # type: ignore[no-untyped-call]
