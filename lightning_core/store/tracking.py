"""Counts what a store is asked for, and how its rollouts end, in a backend of metrics."""

import functools
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any, Final, TypeVar

from lightning_core.lifecycle import RolloutRecord
from lightning_core.rewards import final_reward_in

logger = logging.getLogger(__name__)

LATENCY_BUCKETS: Final = tuple(digit * 10.0**power for power in range(-5, 3) for digit in (1.0, 2.5, 5.0))
"""Upper bounds, in seconds: from 10 microseconds to 500 seconds."""

DURATION_BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
"""Upper bounds, in seconds, of what rollouts take."""

REWARD_BUCKETS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Upper bounds; a negative reward counts in the first bucket."""


class MetricsBackend(ABC):
    """Where counters and histograms go. A metric is registered before it is used; again is no error.

    A name has dots, as in `agl.store.total`. What raises for a wrong name or wrong labels raises `ValueError`.
    """

    def has_prometheus(self) -> bool:
        """Whether Prometheus can read it."""
        return False

    @abstractmethod
    def register_counter(
        self, name: str, label_names: Sequence[str] | None = None, group_level: int | None = None
    ) -> None:
        """Register a counter.

        Args:
            name: Its name.
            label_names: The labels that each value has.
            group_level: How many of them, the first ones, are told apart where values are shown together.
        """

    @abstractmethod
    def register_histogram(
        self,
        name: str,
        label_names: Sequence[str] | None = None,
        buckets: Sequence[float] | None = None,
        group_level: int | None = None,
    ) -> None:
        """Register a histogram; `buckets` are the upper bounds, None for those of the backend."""

    @abstractmethod
    async def inc_counter(self, name: str, amount: float = 1.0, labels: dict[str, str] | None = None) -> None:
        """Add to a counter."""

    @abstractmethod
    async def observe_histogram(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        """Record a value in a histogram."""


@contextmanager
def counting() -> Iterator[None]:
    """Log what a backend of metrics raises, the same once: what it counts has happened, and stays."""
    try:
        yield
    except Exception as exc:
        _tell_once(type(exc).__name__, str(exc))


@functools.lru_cache(maxsize=100)
def _tell_once(kind: str, text: str) -> None:
    logger.error("lightning.not_counted cause=%s: %s; metrics are incomplete", kind, text)


MethodT = TypeVar("MethodT", bound=Callable[..., Coroutine[Any, Any, Any]])

_CALL_LABELS = ("method", "store_pubmeth", "status")
_called: ContextVar[str | None] = ContextVar("called", default=None)


def tracked(name: str) -> Callable[[MethodT], MethodT]:
    """Decorate an async method: its calls are counted and timed in the `tracker` of its object, if that has one.

    `agl.store.total` and `agl.store.latency` have the labels `method`, this name; `store_pubmeth`, the tracked method
    that was called from outside; and `status`, `OK` or the class of what was raised. Waits are part of the time.
    """

    def decorate(method: MethodT) -> MethodT:
        @functools.wraps(method)
        async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            tracker: MetricsBackend | None = getattr(self, "tracker", None)
            if tracker is None:
                return await method(self, *args, **kwargs)
            outermost, status, began = _called.get() or name, "OK", time.perf_counter()
            token = _called.set(outermost)
            try:
                return await method(self, *args, **kwargs)
            except BaseException as exc:
                status = type(exc).__name__
                raise
            finally:
                _called.reset(token)
                labels = dict(zip(_CALL_LABELS, (name, outermost, status), strict=True))
                with counting():
                    await tracker.inc_counter("agl.store.total", labels=labels)
                    await tracker.observe_histogram("agl.store.latency", time.perf_counter() - began, labels=labels)

        return call  # type: ignore[return-value]  # it takes what the method takes

    return decorate


def track(store: Any, tracker: MetricsBackend, operations: Sequence[str]) -> None:
    """Let these operations of a store be tracked, and register what `track_end` counts."""
    tracker.register_counter("agl.store.total", _CALL_LABELS, group_level=1)
    tracker.register_histogram("agl.store.latency", _CALL_LABELS, LATENCY_BUCKETS, group_level=1)
    tracker.register_counter("agl.rollouts.total", ("status", "mode"), group_level=1)
    tracker.register_histogram("agl.rollouts.duration", ("status", "mode"), DURATION_BUCKETS, group_level=1)
    tracker.register_histogram("agl.rollouts.wait", ("mode",), DURATION_BUCKETS)
    tracker.register_histogram("agl.rollouts.reward", ("mode",), REWARD_BUCKETS, group_level=1)
    tracker.register_counter("agl.attempts.total", ("status",), group_level=1)
    for name in _USAGE.values():
        tracker.register_counter(name)
    for operation in operations:
        method = tracked(operation)(getattr(type(store), operation))
        setattr(store, operation, MethodType(method, store))


_USAGE = {
    "calls": "agl.model.calls.total",
    "input_tokens": "agl.model.input_tokens.total",
    "output_tokens": "agl.model.output_tokens.total",
    "cost": "agl.model.cost_usd.total",
}
"""What runners say that an attempt used -> the counter of it."""


async def track_end(tracker: MetricsBackend, record: RolloutRecord) -> None:
    """Count a rollout that has just ended: how, how long it waited and took, its reward, and what it used."""
    rollout, mode = record.rollout, record.rollout.mode or "unknown"
    labels: dict[str, str] = {"status": rollout.status, "mode": mode}
    await tracker.inc_counter("agl.rollouts.total", labels=labels)
    if rollout.end_time is not None:
        await tracker.observe_histogram("agl.rollouts.duration", rollout.end_time - rollout.start_time, labels=labels)
    for attempt in record.attempts:
        if attempt.sequence_id == 1:
            waited = attempt.start_time - rollout.start_time
            await tracker.observe_histogram("agl.rollouts.wait", waited, labels={"mode": mode})
        await tracker.inc_counter("agl.attempts.total", labels={"status": attempt.status})
        used = (attempt.metadata or {}).get("usage")
        if isinstance(used, dict):
            for field, name in _USAGE.items():
                amount = used.get(field)  # an agent can write there what it likes
                if isinstance(amount, int | float) and 0 < amount <= sys.float_info.max:
                    await tracker.inc_counter(name, float(amount))
    latest = record.latest
    if latest is not None and (reward := final_reward_in(latest.metadata)) is not None:
        await tracker.observe_histogram("agl.rollouts.reward", reward, labels={"mode": mode})
