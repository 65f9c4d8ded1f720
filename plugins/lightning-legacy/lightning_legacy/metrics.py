"""Backends of metrics of agentlightning 0.3's `utils.metrics`: a log of what happens now, and several at once."""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

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
        write: Callable[[str], None] = logger.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters: set[str] = set()
        self._shown: dict[str, Sequence[str]] = {}
        """By metric, the labels that are told apart."""
        self._window = math.inf if window_seconds is None else window_seconds
        self._interval = log_interval_seconds
        self._group_level = group_level
        self._write = write
        self._clock = clock
        self._began = self._last = clock()
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], deque[tuple[float, float]]] = defaultdict(deque)
        """By title and metric, when each value was recorded, and the value."""

    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        self._counters.add(name)
        self.register_histogram(name, label_names, group_level=group_level)

    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        level = group_level if self._group_level is None else self._group_level
        self._shown[name] = (label_names or ())[: level or 0]

    async def inc_counter(self, name: str, amount: float = 1.0, labels: LabelDict | None = None) -> None:
        self._record(name, amount, labels)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        self._record(name, value, labels)

    def _record(self, name: str, value: float, labels: LabelDict | None) -> None:
        if name not in self._shown:
            raise ValueError(f"{name!r} is not a registered metric; call register_counter or register_histogram first")
        shown = ", ".join(f"{each}={(labels or {})[each]}" for each in self._shown[name])
        now = self._clock()
        with self._lock:
            self._values[f"{name}{{{shown}}}" if shown else name, name].append((now, value))
            if now - self._last < self._interval:
                return
            self._last = now
            line = self._line(now)
        self._write(line)

    def _line(self, now: float) -> str:
        seconds = max(min(self._window, now - self._began), 1e-9)
        parts: list[str] = []
        for (title, name), kept in sorted(self._values.items()):
            while kept and kept[0][0] < now - self._window:
                kept.popleft()
            values = [value for _, value in kept]
            if name in self._counters:
                parts.append(f"{title} {sum(values) / seconds:.4g}/s")
            elif values:
                parts.append(f"{title} {_percentiles(values)}")
        return "  ".join(parts)


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
