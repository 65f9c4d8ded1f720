"""The backend of metrics that Prometheus reads. agentlightning 0.3 has it in `utils.metrics`."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from lightning_core.store.tracking import LATENCY_BUCKETS, MetricsBackend

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
        self._find(Counter, name, labels).inc(amount)

    async def observe_histogram(self, name: str, value: float, labels: LabelDict | None = None) -> None:
        """See `MetricsBackend.observe_histogram`."""
        self._find(Histogram, name, labels).observe(value)

    def _register(self, kind: Any, name: str, label_names: Sequence[str] | None, **options: Any) -> None:
        labels, known = tuple(label_names or ()), self._metrics.get(name)
        if known is None:
            about = f"{name}, a {kind.__name__.lower()}."
            self._metrics[name] = kind(name.replace(".", "_"), about, labels, registry=self.registry, **options)
        elif not isinstance(known, kind):
            raise ValueError(f"metric {name!r} is registered as a {type(known).__name__.lower()}")

    def _find(self, kind: Any, name: str, labels: LabelDict | None) -> Any:
        metric = self._metrics.get(name)
        if not isinstance(metric, kind):
            what = kind.__name__.lower()
            raise ValueError(f"{name!r} is not a registered {what}; call register_{what} first")
        return metric.labels(**labels) if labels else metric


_of_process: dict[str, Any] = {}
