"""The memory store against a small independent model of the rules, under random calls and a random clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightning_core.errors import InvalidTransition
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptStatus, RolloutConfig, RolloutStatus, Span

OVER = ("succeeded", "failed", "cancelled")


class RefusedError(Exception):
    """The model does not allow this."""


@dataclass
class ModelAttempt:
    began: float
    worker: str | None
    status: str = "preparing"
    last_sign: float | None = None
    ended: float | None = None
    spans: int = 0


@dataclass
class ModelRollout:
    config: RolloutConfig
    status: str = "queuing"
    ended: float | None = None
    attempts: list[ModelAttempt] = field(default_factory=list)

    def outcome_hangs_on(self, attempt: ModelAttempt) -> bool:
        replaced = attempt is not self.attempts[-1]
        overtaken = self.status in ("queuing", "requeuing") and attempt.status in ("preparing", "running")
        return not (self.status in OVER or replaced or overtaken)


class Model:
    """The rules of the store, for one run, as plainly as they can be written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rollouts: list[ModelRollout] = []
        self.queue: list[ModelRollout] = []

    def expire(self) -> None:
        due = []
        for number, rollout in enumerate(self.rollouts):
            if rollout.status not in ("preparing", "running"):
                continue
            attempt, limits = rollout.attempts[-1], []
            if rollout.config.timeout_seconds is not None:
                limits.append((attempt.began + rollout.config.timeout_seconds, "timeout"))
            if rollout.config.unresponsive_seconds is not None:
                sign = attempt.began if attempt.last_sign is None else attempt.last_sign
                limits.append((sign + rollout.config.unresponsive_seconds, "unresponsive"))
            if limits and min(limits)[0] <= self.now:
                due.append((min(limits)[0], number, min(limits)[1]))
        for _, number, status in sorted(due):
            self.end_attempt(self.rollouts[number], self.rollouts[number].attempts[-1], status)

    def set_rollout(self, rollout: ModelRollout, status: str) -> None:
        waits = status in ("queuing", "requeuing")
        if waits and rollout not in self.queue:
            self.queue.append(rollout)
        if not waits and rollout in self.queue:
            self.queue.remove(rollout)
        if rollout.status != status:
            rollout.status, rollout.ended = status, self.now if status in OVER else None

    def end_attempt(self, rollout: ModelRollout, attempt: ModelAttempt, status: str) -> None:
        counts = rollout.outcome_hangs_on(attempt)
        attempt.status, attempt.ended = status, self.now
        if counts and status == "succeeded":
            self.set_rollout(rollout, "succeeded")
        elif counts:
            again = status in rollout.config.retry_condition and len(rollout.attempts) < rollout.config.max_attempts
            self.set_rollout(rollout, "requeuing" if again else "failed")

    def run_attempt(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        counts = rollout.outcome_hangs_on(attempt)
        attempt.status, attempt.ended, attempt.last_sign = "running", None, self.now
        if counts:
            self.set_rollout(rollout, "running")

    def claim(self, worker: str) -> ModelRollout | None:
        if not self.queue:
            return None
        rollout = self.queue[0]
        self.start_attempt(rollout, worker)
        return rollout

    def start_attempt(self, rollout: ModelRollout, worker: str) -> None:
        if rollout.status in OVER:
            raise RefusedError
        rollout.attempts.append(ModelAttempt(self.now, worker))
        self.set_rollout(rollout, "preparing")

    def add_span(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        attempt.spans += 1
        if rollout.outcome_hangs_on(attempt) and attempt.status in ("preparing", "unresponsive"):
            self.run_attempt(rollout, attempt)
        elif rollout.outcome_hangs_on(attempt) and attempt.status == "running":
            attempt.last_sign = self.now

    def update_attempt(self, rollout: ModelRollout, attempt: ModelAttempt, status: str) -> None:
        if attempt.status == status:
            return
        revivable = attempt.status == "unresponsive" and rollout.outcome_hangs_on(attempt)
        if status == "preparing" or not (attempt.status in ("preparing", "running") or revivable):
            raise RefusedError
        if status == "running":
            self.run_attempt(rollout, attempt)
        else:
            self.end_attempt(rollout, attempt, status)

    def update_rollout(self, rollout: ModelRollout, status: str) -> None:
        if rollout.status == status:
            return
        newest = rollout.attempts[-1].status if rollout.attempts else None
        without_attempt = status == "running" and newest not in ("preparing", "running")
        backwards = status == "preparing" and newest != "preparing"
        if rollout.status in OVER or without_attempt or backwards:
            raise RefusedError
        self.set_rollout(rollout, status)


class StoreAndModel(RuleBasedStateMachine):
    """Every call goes to both; what each of them shows has to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.clock = FakeClock(start=0.0)
        self.store = InMemoryLightningStore(clock=self.clock, run_id="run-1")
        self.model = Model()
        self.ids: list[str] = []

    def teardown(self) -> None:
        self.loop.run(self.store.aclose())
        self.loop.close()

    def both(self, call: Callable[[], Awaitable[Any]], rule: Callable[[], Any]) -> tuple[Any, Any]:
        async def awaited() -> Any:
            return await call()

        self.model.expire()
        try:
            expected = rule()
        except RefusedError:
            with pytest.raises(InvalidTransition):
                self.loop.run(awaited())
            return None, None
        return self.loop.run(awaited()), expected

    def pick(self, position: int) -> int:
        return position % len(self.ids)

    def pick_attempt(self, number: int, position: int) -> tuple[ModelAttempt, str] | None:
        attempts = self.model.rollouts[number].attempts
        if not attempts:
            return None
        at = -1 - position % len(attempts)
        return attempts[at], self.loop.run(self.attempts(number))[at].attempt_id

    async def attempts(self, number: int) -> list[Any]:
        return list(await self.store.query_attempts(self.ids[number]))

    @rule(
        timeout=st.none() | st.integers(1, 9),
        silence=st.none() | st.integers(1, 9),
        max_attempts=st.integers(1, 3),
        retries=st.lists(st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True),
    )
    def enqueue(self, timeout: int | None, silence: int | None, max_attempts: int, retries: list[Any]) -> None:
        config = RolloutConfig(
            timeout_seconds=timeout, unresponsive_seconds=silence, max_attempts=max_attempts, retry_condition=retries
        )
        rollout = ModelRollout(config)
        self.ids.append(self.loop.run(self.store.enqueue_rollout("a", config=config)).rollout_id)
        self.model.rollouts.append(rollout)
        self.model.queue.append(rollout)

    @rule(worker=st.sampled_from(["w-1", "w-2"]))
    def claim(self, worker: str) -> None:
        claimed, expected = self.both(lambda: self.store.dequeue_rollout(worker), lambda: self.model.claim(worker))
        assert (claimed is None) == (expected is None)
        if expected is not None:
            assert self.model.rollouts[self.ids.index(claimed.rollout_id)] is expected

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), worker=st.sampled_from(["w-1", "w-2"]))
    def start_attempt(self, position: int, worker: str) -> None:
        number = self.pick(position)
        if len(self.model.rollouts[number].attempts) < 6:
            self.both(
                lambda: self.store.start_attempt(self.ids[number], worker),
                lambda: self.model.start_attempt(self.model.rollouts[number], worker),
            )

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), which=st.integers(0, 5))
    def add_span(self, position: int, which: int) -> None:
        number = self.pick(position)
        if picked := self.pick_attempt(number, which):
            attempt, attempt_id = picked
            span = Span.from_attributes(attributes={}, rollout_id=self.ids[number], attempt_id=attempt_id)
            stored, _ = self.both(
                lambda: self.store.add_span(span), lambda: self.model.add_span(self.model.rollouts[number], attempt)
            )
            assert stored.sequence_id == attempt.spans

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), which=st.integers(0, 5), status=st.sampled_from(get_args(AttemptStatus)))
    def update_attempt(self, position: int, which: int, status: AttemptStatus) -> None:
        number = self.pick(position)
        if picked := self.pick_attempt(number, which):
            attempt, attempt_id = picked
            self.both(
                lambda: self.store.update_attempt(self.ids[number], attempt_id, status=status),
                lambda: self.model.update_attempt(self.model.rollouts[number], attempt, status),
            )

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), status=st.sampled_from(get_args(RolloutStatus)))
    def update_rollout(self, position: int, status: RolloutStatus) -> None:
        number = self.pick(position)
        self.both(
            lambda: self.store.update_rollout(self.ids[number], status=status),
            lambda: self.model.update_rollout(self.model.rollouts[number], status),
        )

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.loop.run(self.clock.advance(seconds))
        self.model.now += seconds

    @invariant()
    def both_show_the_same(self) -> None:
        self.model.expire()
        self.loop.run(self.compare())

    async def compare(self) -> None:
        for number, expected in enumerate(self.model.rollouts):
            rollout = await self.store.get_rollout_by_id(self.ids[number])
            assert rollout is not None
            assert (rollout.status, rollout.end_time) == (expected.status, expected.ended)
            found = await self.attempts(number)
            assert [(a.status, a.start_time, a.last_heartbeat_time, a.end_time, a.worker_id) for a in found] == [
                (a.status, a.began, a.last_sign, a.ended, a.worker) for a in expected.attempts
            ]
            assert [a.sequence_id for a in found] == list(range(1, len(expected.attempts) + 1))
        over = [self.ids[number] for number, rollout in enumerate(self.model.rollouts) if rollout.status in OVER]
        ended = await self.store.wait_for_rollouts(rollout_ids=self.ids, timeout=0)
        assert [rollout.rollout_id for rollout in ended] == over
        statistics = await self.store.statistics()
        assert statistics["total_rollouts"] == len(self.model.rollouts)
        assert statistics["total_attempts"] == sum(len(rollout.attempts) for rollout in self.model.rollouts)
        assert statistics["total_spans"] == sum(a.spans for rollout in self.model.rollouts for a in rollout.attempts)


TestStoreAndModel = StoreAndModel.TestCase
TestStoreAndModel.settings = settings(
    max_examples=60, stateful_step_count=30, derandomize=True, database=None, deadline=None
)
