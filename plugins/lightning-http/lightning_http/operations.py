"""The store's methods over HTTP, each once: the client's methods and the server's routes are made of this table."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Union, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, WithJsonSchema, create_model

from lightning_core.store.base import UNSET, LightningStore, Unset
from lightning_core.store.query import sortable
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, PaginatedResult, Rollout
from lightning_core.types.span import without_fraction
from lightning_http.auth import Role
from lightning_http.messages import MAX_CLAIMED, MAX_ENQUEUED, MAX_PAGE

AnyRollout = Annotated[AttemptedRollout | Rollout, Field(union_mode="left_to_right")]


class ClaimedRollout(AttemptedRollout):
    """A rollout that the caller may execute now."""

    attempt_key: str | None = Field(
        default=None, description="A key that can only write spans of this attempt; there is one where keys are used."
    )


@dataclass(frozen=True)
class Operation:
    """A method of `LightningStore` over HTTP.

    Args:
        name: The method. Its signature gives the fields of the request, its docstring the documentation.
        method: GET, POST, PUT or DELETE.
        path: Below the prefix. Parameters of the method may be in it; the others are the query or the body.
        role: Who may call it; higher roles may, too.
        status: The status of a good answer.
        answer: The type of the answer, where the wire has more than the method's annotation says.
        wrapped_in: The only field of an answer that is an object around the value. A method that returns None answers
            with the parameter of this name, or with the run's id.
        body: The parameter that is the whole body; the others are the query.
        renamed: The names on the wire of parameters that have another one there.
        deprecated: Parameters that are older names of others, which win; only the client knows them.
        missing: What None is in the answer's 404, such as `rollout`; without it, None is `null`.
        claims: Whether it gives work, which a server that shuts down does not.
        waits: The parameter that says how long to wait, in seconds.
        always_has_id: Whether the client makes up a request id where the caller gives none.
    """

    name: str
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    role: Role = Role.ALGORITHM
    status: int = 200
    answer: Any = None
    wrapped_in: str | None = None
    body: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    claims: bool = False
    waits: str | None = None
    always_has_id: bool = True

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The method of the interface."""
        function: Callable[..., Any] = getattr(LightningStore, self.name)
        return function

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's signature."""
        return inspect.signature(self.function)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function)

    @cached_property
    def path_names(self) -> tuple[str, ...]:
        """The parameters that are in the path."""
        return tuple(re.findall(r"{(\w+)", self.path))

    @cached_property
    def fields(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that are in the query or the body."""
        elsewhere = ("self", "request_id", self.body, *self.path_names, *self.deprecated)
        return {name: each for name, each in self.signature.parameters.items() if name not in elsewhere}

    @cached_property
    def takes_request_id(self) -> bool:
        """Whether the method has the parameter `request_id`."""
        return "request_id" in self.signature.parameters

    @cached_property
    def is_query(self) -> bool:
        """Whether the answer is a page. Then `<path>/search` takes the conditions as a body, too."""
        return "offset" in self.signature.parameters

    @property
    def returns(self) -> Any:
        """The type of the method's result."""
        return self._hints["return"]

    @cached_property
    def decode(self) -> Callable[[Any], Any]:
        """Makes the method's result of the answer's JSON; of the items of a query's page, a list of records."""
        kind = self.returns if self.answer is None or self.claims else self.answer
        if self.is_query:
            (record,) = kind.__pydantic_generic_metadata__["args"]
            kind = Sequence[record]  # type: ignore[valid-type]
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter.validate_python

    @property
    def _record(self) -> Any:
        return self.returns.__pydantic_generic_metadata__["args"][0]

    # What only the server needs

    @cached_property
    def documented_answer(self) -> Any:
        """The type of the answer."""
        kind = self.returns if self.answer is None else self.answer
        if self.wrapped_in is None:
            return kind
        fields: dict[str, Any] = {self.wrapped_in: (str if kind is type(None) else kind, ...)}
        return create_model(f"{_title(self.name)}Answer", **fields)

    @cached_property
    def request(self) -> type[BaseModel] | None:
        """The model of the query or the body; None where there is nothing to say."""
        fields: dict[str, Any] = {}
        for name, parameter in self.fields.items():
            default = ... if parameter.default is parameter.empty else parameter.default
            alias = self.renamed.get(name)
            fields[name] = (self._type_of(name, parameter), Field(None if default is UNSET else default, alias=alias))
        if self.waits is not None:
            fields["poll_seconds"] = (_Seconds | None, _POLL)
        return create_model(f"{_title(self.name)}Request", **fields) if fields else None

    def _type_of(self, name: str, parameter: inspect.Parameter) -> Any:
        hint = self._hints[name]
        if name == "limit":
            return _integer(-1, MAX_PAGE) if self.is_query else _integer(-_LARGEST, MAX_CLAIMED)
        if name in _TYPES:
            return _TYPES[name]
        # The store itself judges what it judges by more than a type, so that its message is the same over HTTP.
        if parameter.default is UNSET:
            given: Any = Union[*(each for each in get_args(hint) if each is not Unset)]
            return Annotated[Any, WithJsonSchema(TypeAdapter(given).json_schema())]
        if not self.is_query or hint is str:
            return hint
        schema = TypeAdapter(hint).json_schema()
        if name == "sort_by":
            schema = {"anyOf": [{"type": "string", "enum": list(sortable(self._record))}, {"type": "null"}]}
        is_list = "array" in str(schema)
        return Annotated[list[str] | str | None if is_list else str | None, WithJsonSchema(schema)]


def _title(name: str) -> str:
    return name.title().replace("_", "")


def _integer(least: int, most: int) -> Any:
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(without_fraction)]


_LARGEST: Final = 2**53
_Seconds = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e9)]
_POLL: Any = Field(
    default=None,
    description="The longest that this one request may take, in seconds. A wait that is cut short by it is answered "
    "with the header `x-agl-pending: true`.",
)
_TYPES: Final[dict[str, Any]] = {
    "offset": _integer(0, _LARGEST),
    "min_ended": _integer(-_LARGEST, _LARGEST) | None,
    "timeout": _Seconds | None,
    "wait_seconds": _Seconds | None,
    "rollouts": Annotated[list[EnqueueRolloutRequest], Field(max_length=MAX_ENQUEUED)],
    "rollout_ids": list[str],
    "rollout_attempt_ids": Annotated[list[tuple[str, str]], Field(max_length=100_000)],
}

_ATTEMPT = "/rollouts/{rollout_id}/attempts/{attempt_id}"

# The server tries its routes in this order: what is called often comes first, a name before a parameter in its place.
OPERATIONS: Final = {
    operation.name: operation
    for operation in (
        # The queue
        Operation("enqueue_many_rollouts", "POST", "/queues/rollouts/enqueue", status=201),
        Operation(
            "dequeue_many_rollouts",
            "POST",
            "/queues/rollouts/dequeue",
            Role.RUNNER,
            answer=list[ClaimedRollout],
            claims=True,
            waits="wait_seconds",
        ),
        # Attempts
        Operation("query_attempts", "GET", "/rollouts/{rollout_id}/attempts", Role.RUNNER),
        Operation("get_latest_attempt", "GET", "/rollouts/{rollout_id}/attempts/latest", Role.RUNNER),
        Operation("update_attempt", "POST", _ATTEMPT, Role.RUNNER),
        Operation("report_fault", "POST", _ATTEMPT + "/fault", Role.RUNNER),
        Operation(
            "start_attempt",
            "POST",
            "/rollouts/{rollout_id}/attempts",
            Role.RUNNER,
            status=201,
            claims=True,
            answer=ClaimedRollout,
        ),
        # Workers. A heartbeat that is repeated is one more, and the server need not remember it.
        Operation("query_workers", "GET", "/workers", Role.RUNNER),
        Operation("update_worker", "POST", "/workers/{worker_id}", Role.RUNNER, always_has_id=False),
        Operation("get_worker_by_id", "GET", "/workers/{worker_id}", Role.RUNNER),
        # Spans
        Operation("get_next_span_sequence_id", "POST", "/spans/next", Role.ATTEMPT, wrapped_in="sequence_id"),
        Operation(
            "get_many_span_sequence_ids",
            "POST",
            "/spans/next/bulk",
            Role.ATTEMPT,
            wrapped_in="sequence_ids",
            renamed={"rollout_attempt_ids": "attempts"},
        ),
        Operation("query_spans", "GET", "/spans", Role.RUNNER),
        # Rollouts
        Operation("start_rollout", "POST", "/rollouts", status=201, claims=True, answer=ClaimedRollout),
        Operation(
            "query_rollouts",
            "GET",
            "/rollouts",
            Role.RUNNER,
            answer=PaginatedResult[AnyRollout],
            deprecated={"status": "status_in", "rollout_ids": "rollout_id_in"},
        ),
        Operation("delete_rollouts", "POST", "/rollouts/delete", wrapped_in="deleted"),
        Operation("drop_content", "POST", "/rollouts/drop-content", wrapped_in="dropped"),
        Operation(
            "get_rollout_by_id", "GET", "/rollouts/{rollout_id}", Role.RUNNER, answer=AnyRollout, missing="rollout"
        ),
        Operation("update_rollout", "POST", "/rollouts/{rollout_id}", Role.RUNNER, answer=AnyRollout),
        Operation(
            "wait_for_rollouts", "POST", "/waits/rollouts", Role.RUNNER, answer=list[AnyRollout], waits="timeout"
        ),
        # Resources
        Operation("add_resources", "POST", "/resources", status=201, body="resources"),
        Operation("query_resources", "GET", "/resources", Role.RUNNER),
        Operation("get_latest_resources", "GET", "/resources/latest", Role.RUNNER),
        Operation("update_resources", "POST", "/resources/{resources_id:path}", body="resources"),
        Operation("get_resources_by_id", "GET", "/resources/{resources_id:path}", Role.RUNNER),
        # The run
        Operation("statistics", "GET", "/statistics", Role.RUNNER, answer=dict[str, Any]),
        Operation("load_state", "GET", "/state", wrapped_in="state"),
        Operation("save_state", "PUT", "/state", wrapped_in="name"),
        Operation("begin_run", "POST", "/run/begin", wrapped_in="run_id"),
        Operation("end_run", "POST", "/run/end", wrapped_in="run_id"),
        Operation("delete_run", "DELETE", "/run", wrapped_in="run_id"),
    )
}
