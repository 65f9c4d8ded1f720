"""The status machine: every transition by itself, and random histories against what must always hold."""

from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightning_core import lifecycle
from lightning_core.errors import InvalidTransition, NotFound
from lightning_core.lifecycle import ACTIVE_ATTEMPT, ENDED, FINAL_ATTEMPT, QUEUED, RolloutRecord
from lightning_core.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus, Worker

ATTEMPT_STATUSES: tuple[AttemptStatus, ...] = get_args(AttemptStatus)
ROLLOUT_STATUSES: tuple[RolloutStatus, ...] = get_args(RolloutStatus)
RETRIES = RolloutConfig(max_attempts=9, retry_condition=["failed", "timeout", "unresponsive"])


def queued(**config: Any) -> RolloutRecord:
    rollout = Rollout(rollout_id="ro-1", input="a", start_time=0.0, config=RolloutConfig(**config))
    return RolloutRecord("run-1", rollout)


def begun(record: RolloutRecord, now: float = 0.0) -> RolloutRecord:
    return lifecycle.begin_attempt(record, now, attempt_id=f"at-{len(record.attempts) + 1}", worker_id="w-1")


def with_attempt(status: AttemptStatus, config: RolloutConfig = RETRIES) -> RolloutRecord:
    """A rollout whose one attempt has this status, with what that makes of the rollout."""
    record = begun(RolloutRecord("run-1", Rollout(rollout_id="ro-1", input="a", start_time=0.0, config=config)))
    return record if status == "preparing" else lifecycle.set_attempt_status(record, 1.0, "at-1", status)


def statuses(record: RolloutRecord) -> tuple[str, list[str]]:
    return record.rollout.status, [attempt.status for attempt in record.attempts]


def dump(record: RolloutRecord) -> tuple[Any, ...]:
    attempts = [attempt.model_dump() for attempt in record.attempts]
    return record.run_id, record.rollout.model_dump(), attempts, record.revision


# Each transition by itself

ATTEMPT_MOVES: dict[AttemptStatus, set[AttemptStatus]] = {
    "preparing": {"running", "succeeded", "failed", "timeout", "unresponsive"},
    "running": {"succeeded", "failed", "timeout", "unresponsive"},
    "unresponsive": {"running", "succeeded", "failed", "timeout"},
    "succeeded": set(),
    "failed": set(),
    "timeout": set(),
}


@pytest.mark.parametrize("after", ATTEMPT_STATUSES)
@pytest.mark.parametrize("before", ATTEMPT_STATUSES)
def test_an_attempt_moves_along_the_allowed_transitions_only(before: AttemptStatus, after: AttemptStatus) -> None:
    record = with_attempt(before)
    if after == before:
        assert lifecycle.set_attempt_status(record, 2.0, "at-1", after) is record
    elif after in ATTEMPT_MOVES[before]:
        moved = lifecycle.set_attempt_status(record, 2.0, "at-1", after)
        follows = after if after in ("running", "succeeded") else "requeuing"
        assert statuses(moved) == (follows, [after])
        assert moved.attempts[0].end_time == (None if after == "running" else 2.0)
        assert moved.rollout.end_time == (2.0 if after == "succeeded" else None)
    else:
        message = rf"attempt at-1 of rollout ro-1 \('\w+'\) is '{before}'; it cannot become '{after}'"
        with pytest.raises(InvalidTransition, match=message):
            lifecycle.set_attempt_status(record, 2.0, "at-1", after)


ROLLOUT_RECORDS: dict[RolloutStatus, RolloutRecord] = {
    "queuing": queued(),
    "preparing": with_attempt("preparing"),
    "running": with_attempt("running"),
    "requeuing": with_attempt("failed"),
    "succeeded": with_attempt("succeeded"),
    "failed": with_attempt("failed", RolloutConfig()),
    "cancelled": lifecycle.set_rollout_status(with_attempt("running"), 1.0, "cancelled"),
}
ANYWAY: set[RolloutStatus] = {"queuing", "requeuing", "succeeded", "failed", "cancelled"}
ROLLOUT_MOVES: dict[RolloutStatus, set[RolloutStatus]] = {
    "queuing": ANYWAY,
    "preparing": ANYWAY | {"running"},
    "running": ANYWAY,
    "requeuing": ANYWAY,
    "succeeded": set(),
    "failed": set(),
    "cancelled": set(),
}


@pytest.mark.parametrize("after", ROLLOUT_STATUSES)
@pytest.mark.parametrize("before", ROLLOUT_STATUSES)
def test_a_rollout_moves_along_the_allowed_transitions_only(before: RolloutStatus, after: RolloutStatus) -> None:
    record = ROLLOUT_RECORDS[before]
    assert record.rollout.status == before
    if after == before:
        assert lifecycle.set_rollout_status(record, 2.0, after) is record
    elif after in ROLLOUT_MOVES[before]:
        moved = lifecycle.set_rollout_status(record, 2.0, after)
        assert moved.rollout.status == after
        assert moved.rollout.end_time == (2.0 if after in ENDED else None)
        assert moved.attempts == record.attempts
    else:
        message = (
            rf"rollout ro-1 has ended \('{before}'\); it cannot become '{after}'"
            if before in ENDED
            else f"rollout ro-1 cannot become '{after}': it"
        )
        with pytest.raises(InvalidTransition, match=message):
            lifecycle.set_rollout_status(record, 2.0, after)


@pytest.mark.parametrize("status", ROLLOUT_STATUSES)
def test_only_queued_rollouts_are_claimed_and_only_ended_ones_take_no_attempt(status: RolloutStatus) -> None:
    record = ROLLOUT_RECORDS[status]
    if status in QUEUED:
        claimed = lifecycle.claim(record, 5.0, attempt_id="at-new", worker_id="w-7")
        assert claimed.latest == Attempt(
            rollout_id="ro-1",
            attempt_id="at-new",
            sequence_id=len(record.attempts) + 1,
            start_time=5.0,
            worker_id="w-7",
        )
        assert claimed.rollout.status == "preparing"
    else:
        with pytest.raises(InvalidTransition, match=f"rollout ro-1 is '{status}'; only 'queuing' and 'requeuing'"):
            lifecycle.claim(record, 5.0, attempt_id="at-new", worker_id=None)
    if status in ENDED:
        with pytest.raises(InvalidTransition, match=rf"has ended \('{status}'\); enqueue a new one instead"):
            begun(record)
    else:
        assert statuses(begun(record))[1][-1] == "preparing"


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
@pytest.mark.parametrize(
    ("condition", "max_attempts", "expected"),
    [(True, 1, "failed"), (True, 2, "requeuing"), (False, 2, "failed")],
)
def test_a_retry_needs_the_condition_and_an_attempt_left(
    status: AttemptStatus, condition: bool, max_attempts: int, expected: str
) -> None:
    config = RolloutConfig(max_attempts=max_attempts, retry_condition=[status] if condition else [])
    assert with_attempt(status, config).rollout.status == expected


def test_a_first_span_makes_it_run_and_a_later_one_is_a_sign_of_life() -> None:
    record = lifecycle.span_arrived(with_attempt("preparing"), 3.0, "at-1")
    assert statuses(record) == ("running", ["running"])
    later = lifecycle.span_arrived(record, 4.0, "at-1")
    assert statuses(later) == ("running", ["running"])
    assert later.attempts[0].last_heartbeat_time == 4.0


def test_a_span_revives_an_unresponsive_attempt_that_was_not_given_up() -> None:
    revived = lifecycle.span_arrived(with_attempt("unresponsive"), 3.0, "at-1")
    assert statuses(revived) == ("running", ["running"])
    assert (revived.attempts[0].end_time, revived.attempts[0].last_heartbeat_time) == (None, 3.0)


@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_signs_of_life_of_a_given_up_attempt_change_nothing(status: AttemptStatus) -> None:
    replaced, cancelled = begun(begun(queued())), lifecycle.set_rollout_status(begun(queued()), 1.0, "cancelled")
    for record in (replaced, cancelled):
        given_up = record if status == "preparing" else lifecycle.set_attempt_status(record, 2.0, "at-1", status)
        assert lifecycle.given_up(given_up, given_up.attempts[0])
        assert given_up.rollout == record.rollout
        assert lifecycle.span_arrived(given_up, 9.0, "at-1") is given_up
        assert lifecycle.heartbeat(given_up, 9.0, "at-1") is given_up


def test_a_heartbeat_does_not_revive() -> None:
    record = with_attempt("unresponsive")
    assert lifecycle.heartbeat(record, 3.0, "at-1") is record


def test_an_attempt_that_runs_while_its_rollout_is_queued_again_is_given_up() -> None:
    record = lifecycle.set_rollout_status(begun(queued(timeout_seconds=5)), 1.0, "requeuing")
    assert lifecycle.given_up(record, record.attempts[0])
    assert lifecycle.deadline(record) is None
    assert lifecycle.span_arrived(record, 2.0, "at-1") is record
    failed = lifecycle.set_attempt_status(record, 2.0, "at-1", "failed")
    assert statuses(failed) == ("requeuing", ["failed"])


@pytest.mark.parametrize(
    ("config", "last_sign", "expected"),
    [
        ({}, None, None),
        ({"timeout_seconds": 5}, 3.0, (5.0, "timeout")),
        ({"unresponsive_seconds": 5}, None, (5.0, "unresponsive")),
        ({"unresponsive_seconds": 5}, 3.0, (8.0, "unresponsive")),
        ({"timeout_seconds": 7, "unresponsive_seconds": 5}, 1.0, (6.0, "unresponsive")),
        ({"timeout_seconds": 7, "unresponsive_seconds": 5}, 3.0, (7.0, "timeout")),
        ({"timeout_seconds": 5, "unresponsive_seconds": 5}, None, (5.0, "timeout")),
    ],
)
def test_the_deadline_is_the_earlier_limit(
    config: dict[str, Any], last_sign: float | None, expected: tuple[float, str] | None
) -> None:
    record = begun(queued(**config))
    if last_sign is not None:
        record = lifecycle.heartbeat(record, last_sign, "at-1")
    assert lifecycle.deadline(record) == expected


def test_an_unknown_attempt_is_named_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="rollout ro-1 has no attempt 'at-9'; it has at-1"):
        with_attempt("running").attempt("at-9")
    with pytest.raises(NotFound, match="rollout ro-1 has no attempt 'latest'; it has none yet"):
        queued().attempt("latest")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("preparing", {"status": "busy", "current_attempt_id": "at-1", "last_busy_time": 4.0}),
        ("running", {"status": "busy", "current_attempt_id": "at-1", "last_busy_time": 4.0}),
        ("succeeded", {"status": "idle", "current_attempt_id": None, "last_idle_time": 8.0}),
        ("failed", {"status": "idle", "current_attempt_id": None, "last_idle_time": 8.0}),
        ("timeout", {"status": "unknown", "current_attempt_id": None, "last_idle_time": None}),
        ("unresponsive", {"status": "unknown", "current_attempt_id": None, "last_idle_time": None}),
    ],
)
def test_a_worker_follows_its_attempt(status: AttemptStatus, expected: dict[str, Any]) -> None:
    attempt = with_attempt("preparing").attempts[0]
    busy = lifecycle.worker_after(Worker(worker_id="w-1"), attempt, 4.0)
    after = lifecycle.worker_after(busy, attempt.model_copy(update={"status": status}), 8.0)
    assert {name: getattr(after, name) for name in expected} == expected


def test_a_worker_does_not_follow_an_attempt_that_it_left() -> None:
    worker = Worker(worker_id="w-1", status="busy", current_rollout_id="ro-2", current_attempt_id="at-2")
    assert lifecycle.worker_after(worker, with_attempt("failed").attempts[0], 8.0) is worker


# Random histories

configs = st.builds(
    RolloutConfig,
    timeout_seconds=st.none() | st.integers(1, 12),
    unresponsive_seconds=st.none() | st.integers(1, 12),
    max_attempts=st.integers(1, 3),
    retry_condition=st.lists(st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True),
)
positions = st.integers(min_value=0, max_value=9)


class Histories(RuleBasedStateMachine):
    """Any events in any order, at times that do not go back."""

    @initialize(config=configs)
    def enqueue(self, config: RolloutConfig) -> None:
        self.now = 100.0
        self.record = queued()
        self.record = lifecycle.with_fields(self.record, {"config": config})

    def happen(self, change: Any, *, repeatable: bool = True, about: str | None = None) -> None:
        """Let an event happen, if it may, and check what holds for each one."""
        record, before = self.record, dump(self.record)
        try:
            after: RolloutRecord = change(record)
        except InvalidTransition:
            assert dump(record) == before
            return
        assert dump(record) == before
        if repeatable:
            assert dump(change(after)) == dump(after)
        if record.rollout.status in ENDED:
            assert after.rollout == record.rollout
        if about is not None and lifecycle.given_up(record, record.attempt(about)):
            assert after.rollout == record.rollout
        for old, new in zip(record.attempts, after.attempts, strict=False):
            if old.attempt_id != about or old.status in FINAL_ATTEMPT:
                assert (old.status, old.end_time) == (new.status, new.end_time)
        if about is not None and after.rollout.status == "requeuing" != record.rollout.status:
            assert len(after.attempts) < after.rollout.config.max_attempts
            assert after.attempts[-1].status in after.rollout.config.retry_condition
        self.record = after

    def some_attempt(self, position: int) -> str:
        return self.record.attempts[-1 - position % len(self.record.attempts)].attempt_id

    @rule()
    def claim(self) -> None:
        name = f"at-{len(self.record.attempts) + 1}"
        self.happen(lambda record: lifecycle.claim(record, self.now, attempt_id=name, worker_id=None), repeatable=False)

    @precondition(lambda self: len(self.record.attempts) < 6)
    @rule()
    def start_attempt(self) -> None:
        self.happen(lambda record: begun(record, self.now), repeatable=False)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions)
    def span(self, position: int) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.span_arrived(record, self.now, name), about=name)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions)
    def heartbeat(self, position: int) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.heartbeat(record, self.now, name), about=name)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions, status=st.sampled_from(ATTEMPT_STATUSES))
    def set_attempt_status(self, position: int, status: AttemptStatus) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.set_attempt_status(record, self.now, name, status), about=name)

    @rule(status=st.sampled_from(ROLLOUT_STATUSES))
    def set_rollout_status(self, status: RolloutStatus) -> None:
        self.happen(lambda record: lifecycle.set_rollout_status(record, self.now, status))

    @rule(config=configs)
    def change_config(self, config: RolloutConfig) -> None:
        self.record = lifecycle.with_fields(self.record, {"config": config})

    @rule(seconds=st.integers(0, 8))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        latest = self.record.latest
        self.happen(
            lambda record: lifecycle.expire(record, self.now), about=None if latest is None else latest.attempt_id
        )

    @invariant()
    def attempts_are_numbered_from_one_and_all_but_the_newest_are_given_up(self) -> None:
        record = self.record
        assert [attempt.sequence_id for attempt in record.attempts] == list(range(1, len(record.attempts) + 1))
        assert all(lifecycle.given_up(record, attempt) for attempt in record.attempts[:-1])

    @invariant()
    def an_end_time_goes_with_an_end(self) -> None:
        assert (self.record.rollout.end_time is not None) == (self.record.rollout.status in ENDED)
        for attempt in self.record.attempts:
            assert (attempt.end_time is not None) == (attempt.status not in ACTIVE_ATTEMPT)

    @invariant()
    def a_rollout_is_executed_exactly_while_its_newest_attempt_is(self) -> None:
        latest, status = self.record.latest, self.record.rollout.status
        executed = (
            latest is not None and latest.status in ACTIVE_ATTEMPT and not lifecycle.given_up(self.record, latest)
        )
        assert executed == (status in ("preparing", "running"))
        if status == "preparing":
            assert latest is not None
            assert latest.status == "preparing"

    @invariant()
    def a_deadline_is_when_and_as_what_the_attempt_expires(self) -> None:
        record, due = self.record, lifecycle.deadline(self.record)
        if due is None:
            assert lifecycle.expire(record, float("inf")) is record
            return
        at, status = due
        assert lifecycle.expire(record, at - 0.5) is record
        expired = lifecycle.expire(record, at)
        assert expired.latest is not None
        assert (expired.latest.status, expired.latest.end_time) == (status, at)
        assert lifecycle.deadline(expired) is None


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=150, stateful_step_count=30, derandomize=True, database=None, deadline=None
)
