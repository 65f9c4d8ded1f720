"""What Prometheus reads at `/metrics`."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lightning_core.store.base import LightningStoreStatistics

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "agl_store_requests", "Answered requests.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "agl_store_request_seconds",
            "Time to the answer, waits included.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._in_flight = Gauge("agl_store_requests_in_flight", "Requests without an answer.", registry=self._registry)
        self._held = Gauge("agl_store_records", "What the server's own run holds.", ("kind",), registry=self._registry)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def begin(self) -> None:
        """A request has come."""
        self._in_flight.inc()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered.

        Args:
            method: Its method.
            route: The route's template, never a path with ids in it.
            status: The answer's status; 499 where whoever asked was gone.
            seconds: How long it took.
        """
        self._in_flight.dec()
        children = self._children.get((method, route, status))
        if children is None:
            children = (self._requests.labels(method, route, str(status)), self._seconds.labels(method, route))
            self._children[method, route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def page(self, statistics: LightningStoreStatistics) -> bytes:
        """Return the text that Prometheus reads."""
        for name, value in statistics.items():
            if name.startswith("total_") and isinstance(value, int):
                self._held.labels(name.removeprefix("total_")).set(value)
        return generate_latest(self._registry)
