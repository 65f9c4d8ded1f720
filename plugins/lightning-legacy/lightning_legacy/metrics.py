"""Backends of metrics of agentlightning 0.3's `utils.metrics`: a log of what happens now, and several at once."""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry

from lightning_core.store.tracking import MetricsBackend, tracked

__all__ = [
    "ConsoleMetricsBackend",
    "MetricsBackend",
    "MultiMetricsBackend",
    "get_prometheus_registry",
    "tracked",
]

logger = logging.getLogger(__name__)

LabelDict = dict[str, str]


class _Metric(NamedTuple):
    """A metric that was registered."""

    kind: str
    label_names: tuple[str, ...]
    group_level: int | None


class ConsoleMetricsBackend(MetricsBackend):
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
        self._metrics: dict[str, _Metric] = {}
        self._window = math.inf if window_seconds is None else window_seconds
        self._interval = log_interval_seconds
        self._group_level = group_level
        self._write = logger.info if write is None else write
        self._clock = clock
        self._began = self._last = clock()
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[str, ...]], deque[tuple[float, float]]] = defaultdict(deque)

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self._register(name, _Metric("counter", tuple(label_names or ()), group_level))

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        self._register(name, _Metric("histogram", tuple(label_names or ()), group_level))

    def _register(self, name: str, metric: _Metric) -> None:
        known = self._metrics.setdefault(name, metric)
        if known[:2] != metric[:2]:
            raise ValueError(f"metric {name!r} is registered as a {known.kind} with the labels {known.label_names}")

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        self._record("counter", name, amount, labels)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        self._record("histogram", name, value, labels)

    def _record(self, kind: str, name: str, value: float, labels: LabelDict | None) -> None:
        metric, given = self._metrics.get(name), labels or {}
        if metric is None or metric.kind != kind:
            raise ValueError(f"{name!r} is not a registered {kind}; call register_{kind} first")
        if given.keys() != set(metric.label_names):
            raise ValueError(f"{kind} {name!r} has the labels {metric.label_names}; got {tuple(given)}")
        label_values = tuple(given[each] for each in metric.label_names)
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


def get_prometheus_registry() -> CollectorRegistry:
    """Return the registry of the process."""
    return REGISTRY
