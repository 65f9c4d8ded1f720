"""How a run stands, from what its hooks tell."""

import pytest

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm.estimates import estimate, without_interval
from lightning_core.runs import RolloutCounts
from lightning_core.runs.standing import Standing
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
    sample: int | None = None,
) -> None:
    told = attempt(number, status=attempt_status)
    standing.attempt_began(told)
    rollout = AttemptedRollout(
        rollout_id=f"ro-{number}",
        input=number if sample is None else sample,
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
    assert (now.done, now.failed, now.retried, now.unrewarded, now.running) == (2, 1, 0, 1, 1)
    assert now.reward == estimate([1.0])


def test_attempt_that_is_not_the_newest_of_its_rollout_counts_only_as_use() -> None:
    standing = Standing()
    call = Span.from_attributes(attributes={"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5})
    rollout = AttemptedRollout(
        rollout_id="ro-1", input=1, start_time=0.0, status="succeeded", attempt=attempt(1, nth=2)
    )
    standing.attempt_ended(rollout, attempt(1, status="timeout", nth=1), 1.0, [call])
    now = standing.snapshot()
    assert (now.done, now.reward, now.usage) == (0, None, Usage(calls=1, input_tokens=5))


def tried(standing: Standing, version: str, rewards: dict[int, float], mode: RolloutMode = "val") -> None:
    """Try a version on samples, by their numbers."""
    for sample, reward in rewards.items():
        ended(standing, sample, reward, version=version, mode=mode, sample=sample)


def test_best_is_the_version_that_does_better_on_the_same_samples() -> None:
    standing = Standing()
    tried(standing, "first", {sample: float(sample < 10) for sample in range(40)})
    tried(standing, "better", {sample: float(sample < 24) for sample in range(40)})
    tried(standing, "worse", {sample: float(sample < 8) for sample in range(40)})
    tried(standing, "on few samples", dict.fromkeys(range(20, 39), 1.0))
    tried(standing, "trained", {0: 1.0}, mode="train")
    now = standing.snapshot()
    assert (now.best_resources_id, now.versions) == ("better", 4)
    assert now.best == without_interval(estimate([1.0] * 24 + [0.0] * 16))
    assert now.first == without_interval(estimate([1.0] * 10 + [0.0] * 30))


def test_versions_that_were_tried_on_other_samples_are_not_compared() -> None:
    standing = Standing()
    tried(standing, "hard", {1: 0.0, 2: 0.0, 3: 0.0})
    tried(standing, "easy", {4: 1.0, 5: 1.0, 6: 1.0})
    now = standing.snapshot()
    assert (now.best_resources_id, now.best, now.versions) == (None, None, 2)
    tried(standing, "other", {1: 0.0, 2: 0.5, 7: 1.0})
    now = standing.snapshot()
    assert now.best_resources_id == "other"
    assert (now.best, now.first) == (without_interval(estimate([0.0, 0.5])), without_interval(estimate([0.0, 0.0])))


def test_remaining_time_and_rate_are_known_when_five_rollouts_have_ended() -> None:
    clock = Seconds()
    standing = Standing(clock)
    standing.begin("run-1")
    standing.expected_rollouts = 20
    for sample in range(5):
        assert standing.snapshot().remaining_seconds is None
        assert standing.snapshot().rollouts_per_second is None
        clock.now += 2.0
        ended(standing, sample, 1.0)
    assert standing.snapshot().remaining_seconds == pytest.approx(30.0)
    assert standing.snapshot().rollouts_per_second == pytest.approx(0.5)
    clock.now += 26.0
    assert standing.snapshot().rollouts_per_second == pytest.approx(5 / 36)
    standing.end()
    clock.now += 5.0
    now = standing.snapshot()
    assert (now.elapsed_seconds, now.remaining_seconds, now.rollouts_per_second) == (36.0, None, None)


def test_a_second_run_begins_from_nothing() -> None:
    standing = Standing(Seconds())
    for run_id, sample in (("run-1", 1), ("run-2", 2)):
        standing.begin(run_id)
        assert (standing.snapshot().done, standing.snapshot().expected, standing.snapshot().reward) == (0, None, None)
        standing.expected_rollouts = 1
        ended(standing, sample, 1.0)
        standing.end()
    assert (standing.snapshot().done, standing.snapshot().expected) == (1, 1)


def test_run_that_is_taken_up_again_counts_what_it_had_but_not_its_speed() -> None:
    clock = Seconds()
    standing = Standing(clock)
    standing.expected_rollouts = 25
    standing.begin("run-1", RolloutCounts(succeeded=8, failed=2, cancelled=3, unfinished=4))
    now = standing.snapshot()
    assert (now.done, now.failed, now.remaining_seconds) == (8, 2, None)
    for sample in range(5):
        ended(standing, sample, 1.0)
    clock.now += 10.0
    now = standing.snapshot()
    assert (now.done, now.failed) == (13, 2)
    assert now.remaining_seconds == pytest.approx(20.0)
