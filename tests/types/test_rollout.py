"""Rollouts, attempts, workers and their configs as records."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lightning_core.types import Attempt, AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig, Worker

CONFIG = RolloutConfig(timeout_seconds=1.5, unresponsive_seconds=2, max_attempts=3, retry_condition=["failed"])
ATTEMPT = Attempt(
    rollout_id="ro-1",
    attempt_id="at-1",
    sequence_id=1,
    start_time=1.5,
    end_time=2.5,
    status="failed",
    worker_id="w-1",
    last_heartbeat_time=2.0,
    metadata={"failure": {"message": "x"}},
)
ROLLOUT = Rollout(
    rollout_id="ro-1", input={"q": ["a", None]}, start_time=1.0, mode="val", config=CONFIG, metadata={"a": 1}
)


@pytest.mark.parametrize(
    "record",
    [
        CONFIG,
        ATTEMPT,
        ROLLOUT,
        AttemptedRollout(**ROLLOUT.model_dump(), attempt=ATTEMPT),
        EnqueueRolloutRequest(input=[1], config=CONFIG),
        Worker(worker_id="w-1", status="busy", heartbeat_stats={"cpu": [0.5]}, current_attempt_id="at-1"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_comes_back_from_json_as_it_was(record: BaseModel) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": 0},
        {"unresponsive_seconds": -1},
        {"timeout_seconds": True},
        {"unresponsive_seconds": "30"},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": "3"},
        {"max_attempts": 2.5},
        {"retry_condition": ["lazy"]},
        {"timeout": 5},
    ],
    ids=str,
)
def test_a_config_refuses_limits_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        RolloutConfig(**wrong)


def test_a_limit_without_a_fraction_is_an_integer() -> None:
    assert RolloutConfig(max_attempts=3.0, timeout_seconds=30) == RolloutConfig(max_attempts=3, timeout_seconds=30.0)


def test_an_attempt_of_another_rollout_is_refused() -> None:
    with pytest.raises(ValidationError, match="attempt at-1 belongs to rollout ro-1, not to ro-2"):
        AttemptedRollout(rollout_id="ro-2", input=None, start_time=0.0, attempt=ATTEMPT)


def test_a_config_is_not_shared_between_rollouts() -> None:
    one = Rollout(rollout_id="ro-1", input=None, start_time=0.0)
    one.config.retry_condition.append("failed")
    assert Rollout(rollout_id="ro-2", input=None, start_time=0.0).config == RolloutConfig()
