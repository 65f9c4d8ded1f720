"""Rollouts, attempts, what an agent may return, and the workers that execute them."""

from typing import TYPE_CHECKING, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightning_core.types.span import Integer, Span, SpanCoreFields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


TaskInput = Any
"""One sample of a dataset: whatever the agent takes as its task."""

RolloutMode = Literal["train", "val", "test"]
"""What a rollout is for."""

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
"""`queuing -> preparing -> running -> succeeded | failed | cancelled`; `requeuing` when a retry is due."""

AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
"""`preparing -> running -> succeeded | failed | timeout | unresponsive`."""


class RolloutConfig(BaseModel):
    """When an attempt is given up, and whether another one follows."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: float | None = Field(default=None, gt=0, strict=True)
    """Longest duration of one attempt, in seconds from its start; None for no limit."""
    unresponsive_seconds: float | None = Field(default=None, gt=0, strict=True)
    """Longest silence (no span, no heartbeat) of one attempt, in seconds; None for no limit."""
    max_attempts: Integer = Field(default=1, ge=1)
    """How many attempts a rollout may have in all, the first included."""
    retry_condition: list[AttemptStatus] = Field(default_factory=list)
    """The attempt statuses after which another attempt is made, while `max_attempts` allows it."""


class Attempt(BaseModel):
    """One execution of a rollout."""

    rollout_id: str
    """The rollout that is executed."""
    attempt_id: str
    """Unique among all attempts of all rollouts."""
    sequence_id: int
    """Counts the attempts of one rollout, from 1."""
    start_time: float
    """When it was claimed, in seconds since the epoch."""
    end_time: float | None = None
    """When it ended, in seconds since the epoch; None while it runs."""
    status: AttemptStatus = "preparing"
    """`running` from its first span on."""
    worker_id: str | None = None
    """The worker that executes it."""
    last_heartbeat_time: float | None = None
    """When it last gave a sign of life (a span or a heartbeat), in seconds since the epoch."""
    metadata: dict[str, Any] | None = None
    """Anything else that is known of it. A failed attempt has its cause under `failure`."""


class Rollout(BaseModel):
    """One unit of work: an input, what it is for, which resources it uses, and how it went."""

    rollout_id: str
    """Unique among all rollouts of all runs."""
    input: TaskInput
    """The task that the agent is given."""
    start_time: float
    """When it was created, in seconds since the epoch."""
    end_time: float | None = None
    """When it ended, in seconds since the epoch; None before."""
    mode: RolloutMode | None = None
    """What it is for; None when not given."""
    resources_id: str | None = None
    """The version of the resources that the agent uses; None for the latest at the time of the claim."""
    status: RolloutStatus = "queuing"
    """Where it stands."""
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    """Its limits and its retry policy."""
    metadata: dict[str, Any] | None = None
    """Anything else that its creator wants to keep with it."""


class AttemptedRollout(Rollout):
    """A rollout together with its newest attempt."""

    attempt: Attempt
    """The attempt with the highest `sequence_id`."""

    @model_validator(mode="after")
    def _attempt_is_ours(self) -> "AttemptedRollout":
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(
                f"attempt {self.attempt.attempt_id} belongs to rollout {self.attempt.rollout_id}, "
                f"not to {self.rollout_id}"
            )
        return self


class EnqueueRolloutRequest(BaseModel):
    """What `enqueue_many_rollouts` takes for each rollout."""

    model_config = ConfigDict(extra="forbid")

    input: TaskInput
    """The task that the agent is given."""
    mode: RolloutMode | None = None
    """What the rollout is for."""
    resources_id: str | None = None
    """The version of the resources to use; None for the latest at the time of the claim."""
    config: RolloutConfig | None = None
    """Limits and retry policy; None for the defaults."""
    metadata: dict[str, Any] | None = None
    """Kept with the rollout."""


# Not with `|`: the SDK is not imported for the sake of a name.
RolloutRawResult = Union[None, float, dict[str, float], list["ReadableSpan"], list[Span], list[SpanCoreFields]]  # noqa: UP007
"""What an agent's method returns: nothing, the reward, named rewards, or spans; see `LitAgent`."""


WorkerStatus = Literal["idle", "busy", "unknown"]
"""`busy` while it has an assignment, `unknown` when its attempt was given up."""


class Worker(BaseModel):
    """One runner instance as the store sees it. All times are in seconds since the epoch."""

    worker_id: str
    """Unique among the workers of a run."""
    status: WorkerStatus = "unknown"
    """What it does now."""
    heartbeat_stats: dict[str, Any] | None = None
    """What its last heartbeat said of itself."""
    last_heartbeat_time: float | None = None
    """When it last sent a heartbeat."""
    last_dequeue_time: float | None = None
    """When it last asked for work."""
    last_busy_time: float | None = None
    """When it last was given an attempt."""
    last_idle_time: float | None = None
    """When it last ended an attempt."""
    current_rollout_id: str | None = None
    """The rollout that it works on."""
    current_attempt_id: str | None = None
    """The attempt that it works on."""
