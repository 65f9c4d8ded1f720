"""The status machine: every transition by itself, and random histories against what must always hold."""

from typing import Any, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightning_core import lifecycle
from lightning_core.errors import InvalidTransition
from lightning_core.lifecycle import (
    ACTIVE_ATTEMPT,
    ENDED,
    FINAL_ATTEMPT,
    MAX_FAULTS,
    QUEUED,
    Deadline,
    RolloutRecord,
)
from lightning_core.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus

ATTEMPT_STATUSES: tuple[AttemptStatus, ...] = get_args(AttemptStatus)
ROLLOUT_STATUSES: tuple[RolloutStatus, ...] = get_args(RolloutStatus)
RETRIES = RolloutConfig(max_attempts=9, retry_condition=["failed", "timeout", "unresponsive"])


def queued(**config: Any) -> RolloutRecord:
    rollout = Rollout(rollout_id="ro-1", input="a", start_time=0.0, config=RolloutConfig(**config))
    return RolloutRecord("run-1", rollout)


def begun(record: RolloutRecord, now: float = 0.0, lease_seconds: float | None = None) -> RolloutRecord:
    name = f"at-{len(record.attempts) + 1}"
    return lifecycle.begin_attempt(record, now, attempt_id=name, worker_id="w-1", lease_seconds=lease_seconds)


def with_attempt(status: AttemptStatus, config: RolloutConfig = RETRIES) -> RolloutRecord:
    """A rollout whose one attempt has this status, with what that makes of the rollout."""
    record = begun(RolloutRecord("run-1", Rollout(rollout_id="ro-1", input="a", start_time=0.0, config=config)))
    return record if status == "preparing" else lifecycle.set_attempt_status(record, 1.0, "at-1", status)


def statuses(record: RolloutRecord) -> tuple[str, list[str]]:
    return record.rollout.status, [attempt.status for attempt in record.attempts]


def dump(record: RolloutRecord) -> tuple[Any, ...]:
    attempts = [attempt.model_dump() for attempt in record.attempts]
    kept = record.revision, record.lease_seconds, record.faults, record.requests
    return record.run_id, record.rollout.model_dump(), attempts, *kept


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


@pytest.mark.parametrize("after", ROLLOUT_STATUSES)
@pytest.mark.parametrize("before", ROLLOUT_STATUSES)
def test_a_rollout_moves_along_the_allowed_transitions_only(before: RolloutStatus, after: RolloutStatus) -> None:
    record = ROLLOUT_RECORDS[before]
    assert record.rollout.status == before
    if after == before:
        assert lifecycle.set_rollout_status(record, 2.0, after) is record
    elif before not in ENDED:
        moved = lifecycle.set_rollout_status(record, 2.0, after)
        assert moved.rollout.status == after
        assert moved.rollout.end_time == (2.0 if after in ENDED else None)
        assert moved.attempts == record.attempts
    else:
        message = rf"rollout ro-1 has ended \('{before}'\); it cannot become '{after}'"
        with pytest.raises(InvalidTransition, match=message):
            lifecycle.set_rollout_status(record, 2.0, after)


@pytest.mark.parametrize("status", ROLLOUT_STATUSES)
def test_an_attempt_begins_of_what_has_not_ended(status: RolloutStatus) -> None:
    record = ROLLOUT_RECORDS[status]
    if status in ENDED:
        with pytest.raises(InvalidTransition, match=rf"has ended \('{status}'\); enqueue a new one instead"):
            begun(record)
        return
    started = begun(record, 5.0)
    assert started.rollout.status == "preparing"
    number = len(record.attempts) + 1
    ids = {"rollout_id": "ro-1", "attempt_id": f"at-{number}", "worker_id": "w-1"}
    assert started.latest == Attempt(**ids, sequence_id=number, start_time=5.0)


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
@pytest.mark.parametrize(
    ("condition", "max_attempts", "expected"), [(True, 1, "failed"), (True, 2, "requeuing"), (False, 2, "failed")]
)
def test_a_retry_needs_the_condition_and_an_attempt_left(
    status: AttemptStatus, condition: bool, max_attempts: int, expected: str
) -> None:
    config = RolloutConfig(max_attempts=max_attempts, retry_condition=[status] if condition else [])
    assert with_attempt(status, config).rollout.status == expected


@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_signs_of_life_of_a_given_up_attempt_do_not_change_its_rollout(status: AttemptStatus) -> None:
    replaced, cancelled = begun(begun(queued())), lifecycle.set_rollout_status(begun(queued()), 1.0, "cancelled")
    for record in (replaced, cancelled):
        given_up = record if status == "preparing" else lifecycle.set_attempt_status(record, 2.0, "at-1", status)
        assert lifecycle.given_up(given_up, given_up.attempts[0])
        assert given_up.rollout == record.rollout
        after = lifecycle.span_arrived(given_up, 9.0, "at-1")
        if record is cancelled or status in FINAL_ATTEMPT:
            assert after is given_up
        else:
            assert (after.rollout, after.attempts[0].status) == (record.rollout, "running")
            assert (after.attempts[0].end_time, after.attempts[0].last_heartbeat_time) == (None, 9.0)
        assert lifecycle.heartbeat(given_up, 9.0, "at-1") is given_up


def test_a_heartbeat_does_not_revive() -> None:
    record = with_attempt("unresponsive")
    assert lifecycle.heartbeat(record, 3.0, "at-1") is record


@pytest.mark.parametrize(
    ("config", "lease", "last_sign", "expected"),
    [
        ({}, None, None, None),
        ({"timeout_seconds": 5}, None, 3.0, Deadline(5.0, "timeout")),
        ({"unresponsive_seconds": 5}, None, None, Deadline(5.0, "unresponsive")),
        ({"unresponsive_seconds": 5}, None, 3.0, Deadline(8.0, "unresponsive")),
        ({"timeout_seconds": 7, "unresponsive_seconds": 5}, None, 1.0, Deadline(6.0, "unresponsive")),
        ({"timeout_seconds": 7, "unresponsive_seconds": 5}, None, 3.0, Deadline(7.0, "timeout")),
        ({"timeout_seconds": 5, "unresponsive_seconds": 5}, None, None, Deadline(5.0, "timeout")),
        ({}, 4, None, Deadline(4.0, "unresponsive", is_fault=True)),
        ({}, 4, 3.0, Deadline(7.0, "unresponsive", is_fault=True)),
        ({"timeout_seconds": 6}, 4, 1.0, Deadline(5.0, "unresponsive", is_fault=True)),
        ({"timeout_seconds": 6}, 4, 3.0, Deadline(6.0, "timeout")),
        ({"unresponsive_seconds": 3}, 4, 3.0, Deadline(6.0, "unresponsive")),
        # Where an agent's limit and the lease end together, it is the agent's.
        ({"timeout_seconds": 4}, 4, None, Deadline(4.0, "timeout")),
        ({"unresponsive_seconds": 4}, 4, None, Deadline(4.0, "unresponsive")),
    ],
)
def test_the_deadline_is_the_earliest_limit(
    config: dict[str, Any], lease: float | None, last_sign: float | None, expected: Deadline | None
) -> None:
    record = begun(queued(**config), lease_seconds=lease)
    if last_sign is not None:
        record = lifecycle.heartbeat(record, last_sign, "at-1")
    assert lifecycle.deadline(record) == expected


# Leases


def test_a_heartbeat_that_comes_late_makes_nothing_earlier() -> None:
    record = lifecycle.span_arrived(begun(queued(), 2.0, lease_seconds=4), 5.0, "at-1")
    assert dump(lifecycle.heartbeat(record, 3.0, "at-1")) == dump(record)
    assert lifecycle.heartbeat(record, 1.0, "at-1", 4.0) is record  # sent before the attempt began


def test_a_lease_belongs_to_one_attempt() -> None:
    record = begun(begun(queued(), lease_seconds=4), 3.0)
    assert record.lease_seconds is None
    assert lifecycle.expire(record, 100.0) is record
    assert lifecycle.deadline(begun(queued(), 1.0, 6)) == Deadline(7.0, "unresponsive", is_fault=True)


# Faults


@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_a_fault_ends_what_has_not_ended_by_itself(status: AttemptStatus) -> None:
    record = with_attempt(status)
    if status in FINAL_ATTEMPT:
        message = f"attempt at-1 of rollout ro-1 is '{status}'; a fault cannot end it any more"
        with pytest.raises(InvalidTransition, match=message):
            lifecycle.fault(record, 2.0, "at-1", "the proxy died")
        return
    ended = lifecycle.fault(record, 2.0, "latest", "the proxy died")
    assert statuses(ended) == ("requeuing", ["failed"])
    assert (ended.attempts[0].end_time, ended.attempts[0].metadata) == (2.0, {"fault": "the proxy died"})
    assert ended.faults == ("at-1",)
    assert ended.rollout.end_time is None


def test_rollout_that_is_given_up_says_each_fault_its_worker_and_that_none_was_the_agents() -> None:
    record = queued()
    for number, reason in enumerate(("killed", "lost", "gone", "dead"), 1):
        worker_id = None if number == 3 else f"worker-{number}"
        record = lifecycle.begin_attempt(record, 0.0, attempt_id=f"at-{number}", worker_id=worker_id)
        record = lifecycle.fault(record, float(number), "latest", reason)
        assert record.rollout.status == ("requeuing" if number < 4 else "failed")
    assert record.rollout.end_time == 4.0
    told = [attempt.metadata for attempt in record.attempts]
    assert told[:3] == [{"fault": "killed"}, {"fault": "lost"}, {"fault": "gone"}]
    assert told[3] == {
        "fault": "dead",
        "given_up": "given up after 4 faults, none of which is the agent's failure: attempt 1 on worker-1: killed; "
        "attempt 2 on worker-2: lost; attempt 3 on an unnamed worker: gone; attempt 4 on worker-4: dead",
    }


@pytest.mark.parametrize("ends", ["f!", "!f!", "!!f!", "f!!!", "ff", "!f!!f", "fff"])
def test_faults_do_not_use_up_attempts(ends: str) -> None:
    record = queued(max_attempts=3, retry_condition=["failed"])
    for end in ends:
        assert record.rollout.status in QUEUED
        if end == "!":
            record = lifecycle.fault(begun(record), 1.0, "latest", "the proxy died")
        else:
            record = lifecycle.set_attempt_status(begun(record), 1.0, "latest", "failed")
    assert record.rollout.status == ("failed" if ends.count("f") == 3 else "requeuing")


@pytest.mark.parametrize("how", ["replaced", "queued again", "cancelled"])
def test_a_fault_of_an_attempt_that_was_given_up_changes_itself_only(how: str) -> None:
    record = begun(queued())
    if how == "replaced":
        record = begun(record, 1.0)
    else:
        record = lifecycle.set_rollout_status(record, 1.0, "requeuing" if how == "queued again" else "cancelled")
    ended = lifecycle.fault(record, 2.0, "at-1", "the proxy died")
    assert ended.rollout == record.rollout
    assert ended.faults == ()
    assert (ended.attempts[0].status, ended.attempts[0].metadata) == ("failed", {"fault": "the proxy died"})
    assert ended.attempts[1:] == record.attempts[1:]
    assert lifecycle.fault(ended, 3.0, "at-1", "it is dead") is ended


@pytest.mark.parametrize("keeps_lease", [True, False])
def test_an_attempt_that_is_handed_over_keeps_its_lease_only_with_a_worker_that_can_renew_it(keeps_lease: bool) -> None:
    record = lifecycle.heartbeat(begun(queued()), 1.0, "at-1", 30.0)
    handed = lifecycle.hand_over(record, "latest", "w-2", keeps_lease=keeps_lease)
    assert handed.attempts[0].worker_id == "w-2"
    assert (record.lease_seconds, handed.lease_seconds) == (30.0, 30.0 if keeps_lease else None)
    assert lifecycle.hand_over(handed, "at-1", "w-2", keeps_lease=False) is handed


def test_handing_over_an_old_attempt_leaves_the_lease_of_the_newest_alone() -> None:
    record = lifecycle.begin_attempt(begun(queued()), 1.0, attempt_id="at-2", worker_id="w-2", lease_seconds=30.0)
    handed = lifecycle.hand_over(record, "at-1", "w-3", keeps_lease=False)
    assert [attempt.worker_id for attempt in handed.attempts] == ["w-3", "w-2"]
    assert handed.lease_seconds == 30.0


# Random histories

configs = st.builds(
    RolloutConfig,
    timeout_seconds=st.none() | st.integers(1, 12),
    unresponsive_seconds=st.none() | st.integers(1, 12),
    max_attempts=st.integers(1, 3),
    retry_condition=st.lists(st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True),
)
positions = st.integers(min_value=0, max_value=9)
leases = st.none() | st.integers(1, 12)


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
            if after.faults != record.faults:
                assert after.faults == (*record.faults, about)
            else:
                assert len(after.attempts) - len(after.faults) < after.rollout.config.max_attempts
                assert after.attempts[-1].status in after.rollout.config.retry_condition
        self.record = after

    def some_attempt(self, position: int) -> str:
        return self.record.attempts[-1 - position % len(self.record.attempts)].attempt_id

    @precondition(lambda self: len(self.record.attempts) < 8)
    @rule(lease=leases)
    def start_attempt(self, lease: float | None) -> None:
        self.happen(lambda record: begun(record, self.now, lease), repeatable=False)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions)
    def fault(self, position: int) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.fault(record, self.now, name, "the proxy died"), about=name)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions)
    def span(self, position: int) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.span_arrived(record, self.now, name), about=name)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions, lease=leases, age=st.integers(0, 5))
    def heartbeat(self, position: int, lease: float | None, age: int) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.heartbeat(record, self.now - age, name, lease), about=name)

    @precondition(lambda self: self.record.attempts)
    @rule(position=positions, status=st.sampled_from(ATTEMPT_STATUSES))
    def set_attempt_status(self, position: int, status: AttemptStatus) -> None:
        name = self.some_attempt(position)
        self.happen(lambda record: lifecycle.set_attempt_status(record, self.now, name, status), about=name)

    # What runs because a caller says so is the caller's.
    @rule(status=st.sampled_from([status for status in ROLLOUT_STATUSES if status not in ("preparing", "running")]))
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
        assert lifecycle.expire(record, due.at - 0.5) is record
        expired = lifecycle.expire(record, due.at)
        assert expired.latest is not None
        assert (expired.latest.status, expired.latest.end_time) == (due.status, due.at)
        assert (expired.latest.attempt_id in expired.faults) == due.is_fault
        assert lifecycle.deadline(expired) is None

    @invariant()
    def three_faults_are_survived_and_each_has_ended_another_attempt(self) -> None:
        record = self.record
        assert len(set(record.faults)) == len(record.faults) <= MAX_FAULTS + 1
        assert all(record.attempt(name).status in ("failed", "unresponsive") for name in record.faults)
        assert all(lifecycle.given_up(record, record.attempt(name)) for name in record.faults)
        if len(record.faults) > MAX_FAULTS:
            assert record.rollout.status == "failed"


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=150, stateful_step_count=30, derandomize=True, database=None, deadline=None
)
