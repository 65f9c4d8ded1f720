"""Counts what a store is asked for, and how its rollouts end, in a backend of metrics."""

import functools
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Final

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

    @abstractmethod
    def register_counter(self, name: str, label_names: Sequence[str] = ()) -> None:
        """Register a counter, with the labels that each value has."""

    @abstractmethod
    def register_histogram(
        self, name: str, label_names: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> None:
        """Register a histogram; `buckets` are the upper bounds."""

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


_CALL_LABELS = ("method", "status")


def _tracked(name: str, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Count and time the calls of an operation of a store in its `tracker`, waits included.

    The label `method` is its name, and `status` is `OK` or the class of what was raised.
    """

    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        status, began = "OK", time.perf_counter()
        try:
            return await method(self, *args, **kwargs)
        except BaseException as exc:
            status = type(exc).__name__
            raise
        finally:
            labels = {"method": name, "status": status}
            with counting():
                await self.tracker.inc_counter("agl.store.total", labels=labels)
                await self.tracker.observe_histogram("agl.store.latency", time.perf_counter() - began, labels=labels)

    return call


def track(store: Any, tracker: MetricsBackend, operations: Sequence[str]) -> None:
    """Let these operations of a store be tracked, and register what `track_end` counts."""
    tracker.register_counter("agl.store.total", _CALL_LABELS)
    tracker.register_histogram("agl.store.latency", _CALL_LABELS)
    tracker.register_counter("agl.rollouts.total", ("status", "mode"))
    tracker.register_histogram("agl.rollouts.duration", ("status", "mode"), DURATION_BUCKETS)
    tracker.register_histogram("agl.rollouts.wait", ("mode",), DURATION_BUCKETS)
    tracker.register_histogram("agl.rollouts.reward", ("mode",), REWARD_BUCKETS)
    tracker.register_counter("agl.attempts.total", ("status",))
    for name in _USAGE.values():
        tracker.register_counter(name)
    for operation in operations:
        setattr(store, operation, MethodType(_tracked(operation, getattr(type(store), operation)), store))


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
