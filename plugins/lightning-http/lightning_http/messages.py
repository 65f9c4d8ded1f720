"""The bodies of requests and answers, beyond the records themselves.

Which statuses, modes and orders there are is judged by the store, so that its message is the same over HTTP as in
process. What a body has beyond these fields is ignored, as agentlightning 0.3 does.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, Field, WithJsonSchema

from lightning_core.errors import (
    AccessDenied,
    InvalidRequest,
    InvalidTransition,
    NotFound,
    RunEnded,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from lightning_core.store.query import sortable
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)

PREFIX: Final = "/v1/agl"
"""Where the store's routes are, as in agentlightning 0.3."""

TRACES_PATH: Final = "/v1/traces"
"""Where OpenTelemetry's exporters send spans."""

METRICS_PATH: Final = "/metrics"

OPENAPI_PATH: Final = "/openapi.json"

HEALTH_PATH: Final = PREFIX + "/health"
"""The only route that needs no key."""

MAX_ENQUEUED: Final = 10_000
"""How many rollouts one request may enqueue."""

MAX_CLAIMED: Final = 1_000
"""How many rollouts one request may claim."""

RUN_HEADER: Final = "x-agl-run"
"""Of a request: the run that it is about; without it, the server's own. Of an answer: which run that was."""

LEASE_HEADER: Final = "x-agl-lease-seconds"
"""Of an answer: how long a worker that sends heartbeats may be silent."""

REQUEST_HEADER: Final = "x-agl-request-id"
"""The same id twice is one effect."""

PENDING_HEADER: Final = "x-agl-pending"
"""`true` on the answer to a wait that was cut short: nothing is decided yet, ask again."""

STATUS_OF: Final[dict[type[StoreError], int]] = {
    AccessDenied: 403,
    NotFound: 404,
    InvalidTransition: 409,
    RunEnded: 409,
    InvalidRequest: 422,
    StoreFull: 507,
    StoreClosed: 503,
    StoreUnavailable: 503,
    StoreError: 500,
}
"""The status of each error, for the first of its types that stands here."""

ERRORS: Final = {kind.__name__: kind for kind in STATUS_OF}
"""The errors by the name that an answer has under `error`."""

RETRIED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
"""What a client asks again after; everything else is an answer."""

RUNNER_KEY_VARIABLE: Final = "AGL_RUNNER_KEY"
"""The same for the key of runners, for servers."""


Seconds = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e9)]


def _one_of(names: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def _sort_by(model: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [_one_of(sortable(model)), {"type": "null"}]})


def _some_of(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "array", "items": item}, {"type": "null"}]})


# One string alone is let through to the store, which says what it takes instead.
Names = Annotated[list[str] | str | None, _some_of({"type": "string"})]
Modes = Annotated[list[str] | str | None, _some_of(_one_of(get_args(RolloutMode)))]
RolloutStatuses = Annotated[list[str] | str | None, _some_of(_one_of(get_args(RolloutStatus)))]
WorkerStatuses = Annotated[list[str] | str | None, _some_of(_one_of(get_args(WorkerStatus)))]
Order = Annotated[str, WithJsonSchema({"enum": ["asc", "desc"]})]
Logic = Annotated[str, WithJsonSchema({"enum": ["and", "or"]})]
Count = Annotated[int, Field(ge=-(2**53), le=2**53)]

POLL = Field(
    default=None,
    description="The longest that this one request may take, in seconds. A wait that is cut short by it is answered "
    "with the header `x-agl-pending: true`.",
)


class RolloutRequest(BaseModel):
    """What `start_rollout` takes."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    worker_id: str | None = None


class EnqueueManyRolloutsRequest(BaseModel):
    """What `enqueue_many_rollouts` takes."""

    rollouts: Annotated[list[EnqueueRolloutRequest], Field(max_length=MAX_ENQUEUED)]


class DequeueManyRolloutsRequest(BaseModel):
    """What `dequeue_many_rollouts` takes."""

    limit: Annotated[Count, Field(json_schema_extra={"maximum": MAX_CLAIMED})] = 1
    worker_id: str | None = None
    wait_seconds: Seconds | None = Field(default=0.0, description="0 not to wait, null to wait without limit.")
    poll_seconds: Seconds | None = POLL


class ClaimedRollout(AttemptedRollout):
    """A rollout that whoever asked may execute now."""

    attempt_key: str | None = Field(
        default=None, description="A key that can only write spans of this attempt; there is one where keys are used."
    )


class StartAttemptRequest(BaseModel):
    """What `start_attempt` takes."""

    worker_id: str | None = None


class UpdateRolloutRequest(BaseModel):
    """The fields of a rollout to change; what is not there stays."""

    input: Any = None
    mode: Any = None
    resources_id: str | None = None
    status: Any = None
    config: Any = None
    metadata: Any = None


class UpdateAttemptRequest(BaseModel):
    """The fields of an attempt to change; what is not there stays."""

    status: Any = None
    worker_id: Any = None
    last_heartbeat_time: Any = None
    metadata: Any = None
    add_metadata: Any = None


class RolloutUpdate(UpdateRolloutRequest):
    """One of many changes of rollouts."""

    rollout_id: str
    request_id: str | None = None


class AttemptUpdate(UpdateAttemptRequest):
    """One of many changes of attempts."""

    rollout_id: str
    attempt_id: str
    request_id: str | None = None


class UpdateManyRequest(BaseModel):
    """Changes that are made one after the other, in this order: those of rollouts first."""

    rollouts: list[RolloutUpdate] = Field(default_factory=list)
    attempts: list[AttemptUpdate] = Field(default_factory=list)


class RolloutOutcome(BaseModel):
    """What came of one change: the record, or the error and its message."""

    rollout: Rollout | None = None
    error: str | None = None
    message: str | None = None


class AttemptOutcome(BaseModel):
    """What came of one change: the record, or the error and its message."""

    attempt: Attempt | None = None
    error: str | None = None
    message: str | None = None


class UpdateManyOutcome(BaseModel):
    """What came of each change, in the order of the request."""

    rollouts: list[RolloutOutcome]
    attempts: list[AttemptOutcome]


class FaultRequest(BaseModel):
    """What `report_fault` takes."""

    reason: str


class WaitForRolloutsRequest(BaseModel):
    """What `wait_for_rollouts` takes."""

    rollout_ids: list[str]
    timeout: Seconds | None = None
    min_ended: Count | None = None
    poll_seconds: Seconds | None = POLL


class DeleteRolloutsRequest(BaseModel):
    """What `delete_rollouts` takes."""

    rollout_ids: list[str]


class Deleted(BaseModel):
    """How many records there were."""

    deleted: int


class Page(BaseModel):
    """Which part of the matches to give, and in which order."""

    limit: Annotated[Count, Field(json_schema_extra={"minimum": -1})] = Field(
        default=-1, description="-1 for all, where they fit into one page."
    )
    offset: Annotated[Count, Field(json_schema_extra={"minimum": 0})] = 0
    sort_by: str | None = None
    sort_order: Order = "asc"


class QueryRolloutsRequest(Page):
    """What `query_rollouts` takes."""

    sort_by: Annotated[str | None, _sort_by(Rollout)] = None
    status_in: RolloutStatuses = None
    rollout_id_in: Names = None
    rollout_id_contains: str | None = None
    mode_in: Modes = None
    filter_logic: Logic = "and"


class QueryAttemptsRequest(Page):
    """What `query_attempts` takes."""

    sort_by: Annotated[str | None, _sort_by(Attempt)] = "sequence_id"


class QuerySpansRequest(Page):
    """What `query_spans` takes."""

    rollout_id: str
    attempt_id: str | None = None
    trace_id: str | None = None
    trace_id_contains: str | None = None
    span_id: str | None = None
    span_id_contains: str | None = None
    parent_id: str | None = None
    parent_id_contains: str | None = None
    name: str | None = None
    name_contains: str | None = None
    filter_logic: Logic = "and"
    sort_by: Annotated[str | None, _sort_by(Span)] = "sequence_id"


class QueryResourcesRequest(Page):
    """What `query_resources` takes."""

    sort_by: Annotated[str | None, _sort_by(ResourcesUpdate)] = None
    resources_id: str | None = None
    resources_id_contains: str | None = None


class QueryWorkersRequest(Page):
    """What `query_workers` takes."""

    sort_by: Annotated[str | None, _sort_by(Worker)] = None
    status_in: WorkerStatuses = None
    worker_id_contains: str | None = None
    filter_logic: Logic = "and"


class SequenceIds(BaseModel):
    """A sequence id for each span, in the order of the request; null for a span that was there already."""

    sequence_ids: list[int | None]


class NextSequenceIdRequest(BaseModel):
    """Which attempt to reserve a sequence id of."""

    rollout_id: str
    attempt_id: str


class NextSequenceId(BaseModel):
    """The reserved sequence id."""

    sequence_id: int


class NextSequenceIdsRequest(BaseModel):
    """Which attempts to reserve sequence ids of; one may stand there many times."""

    attempts: Annotated[list[tuple[str, str]], Field(max_length=100_000)]


class UpdateWorkerRequest(BaseModel):
    """A heartbeat."""

    heartbeat_stats: Any = None
    attempts: list[tuple[str, str]] | None = None
    """What the worker executes, each as rollout id and attempt id; null for what its record names."""


class StateName(BaseModel):
    """Whose state."""

    name: str


class SavedState(BaseModel):
    """An algorithm's state; null where there is none."""

    state: Any = None


class SaveStateRequest(BaseModel):
    """What `save_state` takes."""

    name: str
    state: Any


class RunInfo(BaseModel):
    """The run that the request is about."""

    run_id: str


class Health(BaseModel):
    """`ok`, or, with status 503, `draining`."""

    status: str


class ErrorAnswer(BaseModel):
    """What every answer that is an error says."""

    error: str = Field(description="The type of the error, such as `NotFound` or `InvalidTransition`.")
    message: str = Field(description="What, which, got, what next.")
    detail: Any = Field(description="The message; for a body that is wrong, the list of its faults with their places.")
