"""How a run stands, from what its hooks tell."""

import pytest

from lightning_core.algorithm.estimates import estimate
from lightning_core.runs.standing import Snapshot, Standing
from lightning_core.runs.usage import Usage
from lightning_core.types import Attempt, AttemptedRollout, AttemptStatus, RolloutMode, RolloutStatus, Span


class Seconds:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def attempt(number: int, *, status: AttemptStatus = "succeeded", worker: str = "worker-0", nth: int = 1) -> Attempt:
    return Attempt(
        rollout_id=f"ro-{number}",
        attempt_id=f"at-{number}-{nth}",
        sequence_id=nth,
        start_time=0.0,
        status=status,
        worker_id=worker,
    )


def ended(
    standing: Standing,
    number: int,
    reward: float | None = None,
    *,
    status: RolloutStatus = "succeeded",
    attempt_status: AttemptStatus = "succeeded",
    version: str | None = None,
    mode: RolloutMode = "train",
    spans: tuple[Span, ...] = (),
) -> None:
    told = attempt(number, status=attempt_status)
    standing.attempt_began(told)
    rollout = AttemptedRollout(
        rollout_id=f"ro-{number}",
        input=number,
        start_time=0.0,
        mode=mode,
        resources_id=version,
        status=status,
        attempt=told,
    )
    standing.attempt_ended(rollout, told, reward, spans)


def test_rollouts_are_counted_by_what_became_of_them() -> None:
    standing = Standing()
    ended(standing, 1, 1.0)
    ended(standing, 2)
    ended(standing, 3, status="failed", attempt_status="failed")
    ended(standing, 4, status="requeuing", attempt_status="failed")
    ended(standing, 5, status="cancelled", attempt_status="failed")
    standing.attempt_began(attempt(6))
    now = standing.snapshot()
    assert (now.done, now.failed, now.retried, now.unrewarded, now.running) == (2, 1, 1, 1, 1)
    assert now.reward == estimate([1.0])


def test_worker_that_begins_another_attempt_runs_the_old_one_no_more() -> None:
    standing = Standing()
    standing.attempt_began(attempt(1))
    standing.attempt_began(attempt(2))
    standing.attempt_began(attempt(3, worker="worker-1"))
    assert standing.snapshot().running == 2


def test_attempt_that_is_not_the_newest_of_its_rollout_counts_only_as_use() -> None:
    standing = Standing()
    call = Span.from_attributes(attributes={"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5})
    rollout = AttemptedRollout(
        rollout_id="ro-1", input=1, start_time=0.0, status="succeeded", attempt=attempt(1, nth=2)
    )
    standing.attempt_ended(rollout, attempt(1, nth=1), 1.0, [call])
    now = standing.snapshot()
    assert (now.done, now.reward, now.usage) == (0, None, Usage(calls=1, input_tokens=5))


def test_best_is_the_version_with_the_highest_lower_bound() -> None:
    standing = Standing()
    for number in range(40):
        ended(standing, number, float(number < 10), version="first", mode="val")
    for number in range(40, 80):
        ended(standing, number, float(number < 64), version="better", mode="val")
    for number in range(80, 85):
        ended(standing, number, float(number != 80), version="lucky", mode="val")
    ended(standing, 90, 1.0, version="tried once", mode="val")
    ended(standing, 91, 1.0, version="trained", mode="train")
    now = standing.snapshot()
    assert (now.best_resources_id, now.versions) == ("better", 4)
    assert now.best == estimate([1.0] * 24 + [0.0] * 16)
    assert now.first == estimate([1.0] * 10 + [0.0] * 30)


def test_few_rewards_are_enough_where_no_version_has_more() -> None:
    standing = Standing()
    ended(standing, 1, 0.25, version="first")
    ended(standing, 2, 0.75, version="second")
    assert standing.snapshot().best_resources_id == "second"


def test_remaining_time_is_known_where_the_number_of_rollouts_is() -> None:
    clock = Seconds()
    standing = Standing(clock)
    standing.begin("run-1")
    ended(standing, 1, 1.0)
    clock.now += 10.0
    assert standing.snapshot().remaining_seconds is None
    standing.expected_rollouts = 4
    assert standing.snapshot().remaining_seconds == pytest.approx(30.0)
    standing.end()
    clock.now += 5.0
    now = standing.snapshot()
    assert (now.elapsed_seconds, now.remaining_seconds) == (10.0, None)


def test_nothing_is_known_before_the_first_moment() -> None:
    clock = Seconds()
    assert Standing(clock).snapshot() == Snapshot()


def test_steps_keep_the_newest_value_of_each_metric() -> None:
    standing = Standing()
    standing.step_ended(1, {"loss": 0.5, "reward": 0.25})
    standing.step_ended(2, {"loss": 0.25})
    now = standing.snapshot()
    assert (now.step, now.metrics) == (2, {"loss": 0.25, "reward": 0.25})
