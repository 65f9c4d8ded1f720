"""The memory store against a small independent model of the rules, under random calls and a random clock."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightning_core.errors import InvalidTransition
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptStatus, RolloutConfig, RolloutStatus, Span

OVER = ("succeeded", "failed", "cancelled")
LEASE_SECONDS = 4
WORKERS = ("w-1", "w-2")


class RefusedError(Exception):
    """The model does not allow this."""


@dataclass(eq=False)
class ModelAttempt:
    began: float
    worker: str | None
    status: str = "preparing"
    last_sign: float | None = None
    ended: float | None = None
    fault: str | None = None
    spans: int = 0

    @property
    def last_known_alive(self) -> float:
        return self.began if self.last_sign is None else self.last_sign


@dataclass(eq=False)
class ModelRollout:
    config: RolloutConfig
    status: str = "queuing"
    ended: float | None = None
    attempts: list[ModelAttempt] = field(default_factory=list)
    faulted: list[ModelAttempt] = field(default_factory=list)
    lease: int | None = None

    def outcome_hangs_on(self, attempt: ModelAttempt) -> bool:
        replaced = attempt is not self.attempts[-1]
        overtaken = self.status in ("queuing", "requeuing") and attempt.status in ("preparing", "running")
        return not (self.status in OVER or replaced or overtaken or attempt in self.faulted)


@dataclass(eq=False)
class ModelWorker:
    status: str = "unknown"
    last_heartbeat: float | None = None
    works_on: tuple[ModelRollout, ModelAttempt] | None = None


class Model:
    """The rules of the store, for one run, as plainly as they can be written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rollouts: list[ModelRollout] = []
        self.queue: list[ModelRollout] = []
        self.workers = {name: ModelWorker() for name in WORKERS}

    def expire(self) -> None:
        due = []
        for number, rollout in enumerate(self.rollouts):
            if rollout.status not in ("preparing", "running") or not rollout.attempts:
                continue
            attempt, limits = rollout.attempts[-1], []
            if attempt.status not in ("preparing", "running") or not rollout.outcome_hangs_on(attempt):
                continue
            if rollout.config.timeout_seconds is not None:
                limits.append((attempt.began + rollout.config.timeout_seconds, "timeout"))
            if rollout.config.unresponsive_seconds is not None:
                limits.append((attempt.last_known_alive + rollout.config.unresponsive_seconds, "unresponsive"))
            if rollout.lease is not None:
                limits.append((attempt.last_known_alive + rollout.lease, "unresponsive: lease"))
            if limits and min(limits)[0] <= self.now:
                due.append((min(limits)[0], number, min(limits)[1]))
        for _, number, how in sorted(due):
            rollout, attempt = self.rollouts[number], self.rollouts[number].attempts[-1]
            if how == "unresponsive: lease":
                self.end_by_fault(
                    rollout, attempt, "unresponsive", f"its worker gave no sign of life for {rollout.lease} s"
                )
            else:
                self.end_attempt(rollout, attempt, how)

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
            used = len(rollout.attempts) - len(rollout.faulted)
            again = status in rollout.config.retry_condition and used < rollout.config.max_attempts
            self.set_rollout(rollout, "requeuing" if again else "failed")
        self.tell_worker(rollout, attempt)

    def end_by_fault(self, rollout: ModelRollout, attempt: ModelAttempt, status: str, reason: str) -> None:
        counts = rollout.outcome_hangs_on(attempt)
        attempt.status, attempt.ended, attempt.fault = status, self.now, reason
        if counts:
            rollout.faulted.append(attempt)
            self.set_rollout(rollout, "requeuing" if len(rollout.faulted) <= 3 else "failed")
        self.tell_worker(rollout, attempt)

    def run_attempt(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        counts = rollout.outcome_hangs_on(attempt)
        attempt.status, attempt.ended, attempt.last_sign = "running", None, self.now
        if counts:
            self.set_rollout(rollout, "running")

    def tell_worker(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        if attempt.worker is None:
            return
        worker = self.workers[attempt.worker]
        if attempt.status in ("preparing", "running"):
            if rollout.outcome_hangs_on(attempt):
                worker.status, worker.works_on = "busy", (rollout, attempt)
        elif worker.works_on is not None and worker.works_on[1] is attempt:
            worker.status = "idle" if attempt.status in ("succeeded", "failed") else "unknown"
            worker.works_on = None

    def claim(self, limit: int, worker: str) -> list[ModelRollout]:
        claimed = self.queue[:limit]
        for rollout in claimed:
            self.start_attempt(rollout, worker)
        return claimed

    def start_attempt(self, rollout: ModelRollout, worker: str) -> None:
        if rollout.status in OVER:
            raise RefusedError
        attempt = ModelAttempt(self.now, worker)
        rollout.attempts.append(attempt)
        rollout.lease = None if self.workers[worker].last_heartbeat is None else LEASE_SECONDS
        self.set_rollout(rollout, "preparing")
        self.tell_worker(rollout, attempt)

    def heartbeat(self, name: str) -> None:
        self.workers[name].last_heartbeat = self.now
        self.pass_heartbeat_on(name)

    def pass_heartbeat_on(self, name: str) -> None:
        worker = self.workers[name]
        at = worker.last_heartbeat
        if worker.works_on is None or at is None:
            return
        rollout, attempt = worker.works_on
        active = rollout.outcome_hangs_on(attempt) and attempt.status in ("preparing", "running")
        if active and at >= attempt.began:
            attempt.last_sign, rollout.lease = max(at, attempt.last_known_alive), LEASE_SECONDS

    def add_span(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        attempt.spans += 1
        if rollout.status in OVER or attempt.status in ("succeeded", "failed", "timeout") or attempt in rollout.faulted:
            return
        if attempt is rollout.attempts[-1] and not rollout.outcome_hangs_on(attempt):
            return
        revived = attempt.status == "unresponsive"
        self.run_attempt(rollout, attempt)
        if revived:
            self.tell_worker(rollout, attempt)

    def update_attempt(self, rollout: ModelRollout, attempt: ModelAttempt, status: str) -> None:
        if attempt.status != status:
            revivable = attempt.status == "unresponsive" and rollout.outcome_hangs_on(attempt)
            if status == "preparing" or not (attempt.status in ("preparing", "running") or revivable):
                raise RefusedError
            if status == "running":
                self.run_attempt(rollout, attempt)
            else:
                self.end_attempt(rollout, attempt, status)
        self.tell_worker(rollout, attempt)

    def report_fault(self, rollout: ModelRollout, attempt: ModelAttempt) -> None:
        if attempt in rollout.faulted or (attempt.fault is not None and attempt.status == "failed"):
            return
        if attempt.status in ("succeeded", "failed", "timeout"):
            raise RefusedError
        self.end_by_fault(rollout, attempt, "failed", "the proxy died")

    def update_rollout(self, rollout: ModelRollout, status: str) -> None:
        if rollout.status == status:
            return
        if rollout.status in OVER:
            raise RefusedError
        self.set_rollout(rollout, status)

    def delete(self, rollouts: list[ModelRollout]) -> int:
        if any(rollout.status not in OVER for rollout in rollouts):
            raise RefusedError
        for rollout in rollouts:
            self.rollouts.remove(rollout)
        return len(rollouts)


class StoreAndModel(RuleBasedStateMachine):
    """Every call goes to both; what each of them shows has to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.clock = FakeClock(start=0.0)
        self.store = InMemoryLightningStore(clock=self.clock, run_id="run-1", lease_seconds=LEASE_SECONDS)
        self.model = Model()
        self.ids: list[str] = []
        self.requests = 0
        self.sent: list[tuple[Callable[[], Awaitable[Any]], Callable[[], None]]] = []
        """Requests that were answered, and what a repetition of each means to the model."""

    def teardown(self) -> None:
        self.loop.run(self.store.aclose())
        self.loop.close()

    def ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async def awaited() -> Any:
            return await call()

        return self.loop.run(awaited())

    def both(
        self,
        call: Callable[[str], Awaitable[Any]],
        rule: Callable[[], Any],
        rule_again: Callable[[], None] = lambda: None,
    ) -> tuple[Any, Any]:
        """Send a request, and let it happen in the model, if that allows it."""
        self.requests += 1
        request_id = f"r-{self.requests}"
        self.model.expire()
        try:
            expected = rule()
        except RefusedError:
            with pytest.raises(InvalidTransition):
                self.ask(lambda: call(request_id))
            return None, None
        answer = self.ask(lambda: call(request_id))
        if answer:  # a claim that got nothing did nothing, and may do something later
            self.sent = [*self.sent, (lambda: call(request_id), rule_again)][-5:]
        return answer, expected

    def pick(self, position: int) -> tuple[str, ModelRollout]:
        number = position % len(self.ids)
        return self.ids[number], self.model.rollouts[number]

    def pick_attempt(self, position: int, which: int) -> tuple[str, ModelRollout, str, ModelAttempt] | None:
        rollout_id, rollout = self.pick(position)
        if not rollout.attempts:
            return None
        at = -1 - which % len(rollout.attempts)
        return rollout_id, rollout, self.loop.run(self.attempts(rollout_id))[at].attempt_id, rollout.attempts[at]

    async def attempts(self, rollout_id: str) -> list[Any]:
        return list(await self.store.query_attempts(rollout_id))

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
        queued, _ = self.both(
            lambda request_id: self.store.enqueue_rollout("a", config=config, request_id=request_id),
            lambda: self.model.queue.append(rollout),
        )
        self.ids.append(queued.rollout_id)
        self.model.rollouts.append(rollout)

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> None:
        claimed, expected = self.both(
            lambda request_id: self.store.dequeue_many_rollouts(limit=limit, worker_id=worker, request_id=request_id),
            lambda: self.model.claim(limit, worker),
        )
        assert [self.model.rollouts[self.ids.index(item.rollout_id)] for item in claimed] == expected

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), worker=st.sampled_from(WORKERS))
    def start_attempt(self, position: int, worker: str) -> None:
        rollout_id, rollout = self.pick(position)
        if len(rollout.attempts) < 8:
            self.both(
                lambda request_id: self.store.start_attempt(rollout_id, worker, request_id=request_id),
                lambda: self.model.start_attempt(rollout, worker),
            )

    @rule(worker=st.sampled_from(WORKERS))
    def heartbeat(self, worker: str) -> None:
        self.both(
            lambda request_id: self.store.update_worker(worker, request_id=request_id),
            lambda: self.model.heartbeat(worker),
            lambda: self.model.pass_heartbeat_on(worker),
        )

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), which=st.integers(0, 5))
    def add_span(self, position: int, which: int) -> None:
        if picked := self.pick_attempt(position, which):
            rollout_id, rollout, attempt_id, attempt = picked
            span = Span.from_attributes(attributes={}, rollout_id=rollout_id, attempt_id=attempt_id)
            stored, _ = self.both(
                lambda request_id: self.store.add_span(span), lambda: self.model.add_span(rollout, attempt)
            )
            assert stored.sequence_id == attempt.spans

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), which=st.integers(0, 5), status=st.sampled_from(get_args(AttemptStatus)))
    def update_attempt(self, position: int, which: int, status: AttemptStatus) -> None:
        if picked := self.pick_attempt(position, which):
            rollout_id, rollout, attempt_id, attempt = picked
            self.both(
                lambda request_id: self.store.update_attempt(
                    rollout_id, attempt_id, status=status, request_id=request_id
                ),
                lambda: self.model.update_attempt(rollout, attempt, status),
            )

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), which=st.integers(0, 5))
    def report_fault(self, position: int, which: int) -> None:
        if picked := self.pick_attempt(position, which):
            rollout_id, rollout, attempt_id, attempt = picked
            self.both(
                lambda request_id: self.store.report_fault(
                    rollout_id, attempt_id, "the proxy died", request_id=request_id
                ),
                lambda: self.model.report_fault(rollout, attempt),
            )

    @precondition(lambda self: self.ids)
    @rule(position=st.integers(0, 9), status=st.sampled_from(get_args(RolloutStatus)))
    def update_rollout(self, position: int, status: RolloutStatus) -> None:
        rollout_id, rollout = self.pick(position)
        self.both(
            lambda request_id: self.store.update_rollout(rollout_id, status=status, request_id=request_id),
            lambda: self.model.update_rollout(rollout, status),
        )

    @precondition(lambda self: self.ids)
    @rule(positions=st.lists(st.integers(0, 9), min_size=1, max_size=2))
    def delete(self, positions: list[int]) -> None:
        picked = dict(self.pick(position) for position in positions)
        deleted, expected = self.both(
            lambda request_id: self.store.delete_rollouts(list(picked)),
            lambda: self.model.delete(list(picked.values())),
        )
        assert deleted == expected
        if deleted:
            self.ids = [rollout_id for rollout_id in self.ids if rollout_id not in picked]
            self.sent = []  # with what is deleted, the requests that made it are forgotten

    @precondition(lambda self: self.sent)
    @rule(position=st.integers(0, 9))
    def repeat_a_request(self, position: int) -> None:
        call, rule_again = self.sent[position % len(self.sent)]
        self.model.expire()
        rule_again()
        self.ask(call)

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.loop.run(self.clock.advance(seconds))
        self.model.now += seconds

    @invariant()
    def both_show_the_same(self) -> None:
        self.model.expire()
        self.loop.run(self.compare())

    async def compare(self) -> None:
        assert [rollout.rollout_id for rollout in await self.store.query_rollouts()] == self.ids
        for rollout_id, expected in zip(self.ids, self.model.rollouts, strict=True):
            rollout = await self.store.get_rollout_by_id(rollout_id)
            assert rollout is not None
            assert (rollout.status, rollout.end_time) == (expected.status, expected.ended)
            found = await self.attempts(rollout_id)
            assert [(a.status, a.start_time, a.last_heartbeat_time, a.end_time, a.worker_id) for a in found] == [
                (a.status, a.began, a.last_sign, a.ended, a.worker) for a in expected.attempts
            ]
            assert [(a.metadata or {}).get("fault") for a in found] == [a.fault for a in expected.attempts]
            assert [a.sequence_id for a in found] == list(range(1, len(expected.attempts) + 1))
        over = [self.ids[number] for number, rollout in enumerate(self.model.rollouts) if rollout.status in OVER]
        for wait in ({"timeout": 0}, {"min_ended": len(over)}):
            ended = await self.store.wait_for_rollouts(rollout_ids=self.ids, **wait)
            assert [rollout.rollout_id for rollout in ended] == over
        for name, worker in self.model.workers.items():
            shown = await self.store.get_worker_by_id(name)
            if shown is None:
                assert (worker.status, worker.last_heartbeat, worker.works_on) == ("unknown", None, None)
                continue
            assert (shown.status, shown.last_heartbeat_time) == (worker.status, worker.last_heartbeat)
            assert (shown.current_attempt_id is None) == (worker.works_on is None)
            if worker.works_on is not None and worker.works_on[0] in self.model.rollouts:
                on, attempt = worker.works_on
                rollout_id = self.ids[self.model.rollouts.index(on)]
                attempt_id = (await self.attempts(rollout_id))[on.attempts.index(attempt)].attempt_id
                assert (shown.current_rollout_id, shown.current_attempt_id) == (rollout_id, attempt_id)
        statistics = await self.store.statistics()
        assert statistics["total_rollouts"] == len(self.model.rollouts)
        assert statistics["total_attempts"] == sum(len(rollout.attempts) for rollout in self.model.rollouts)
        assert statistics["total_spans"] == sum(a.spans for rollout in self.model.rollouts for a in rollout.attempts)


TestStoreAndModel = StoreAndModel.TestCase
TestStoreAndModel.settings = settings(
    max_examples=100, stateful_step_count=40, derandomize=True, database=None, deadline=None
)
