"""From a caller's arguments to values that are right, and from a query's result to a page."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import Unset
from lightning_core.store.copies import copy_value
from lightning_core.store.query import Query
from lightning_core.types import EnqueueRolloutRequest, PaginatedResult, RolloutConfig, RolloutMode, TaskInput
from lightning_core.types.clone import construct

T = TypeVar("T")


def make_request(
    input: TaskInput,
    mode: RolloutMode | None,
    resources_id: str | None,
    config: RolloutConfig | None,
    metadata: Mapping[str, Any] | None,
) -> EnqueueRolloutRequest:
    """Make a request for a rollout.

    Raises:
        InvalidRequest: Names the argument that is wrong.
    """
    try:
        return EnqueueRolloutRequest(
            input=input,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata=cast("dict[str, Any] | None", metadata),
        )
    except ValidationError as exc:
        fault = exc.errors()[0]
        raise InvalidRequest(f"{fault['loc'][0]} is {fault['input']!r}: {fault['msg']}") from exc


def page(items: Sequence[T], query: Query, total: int) -> PaginatedResult[T]:
    """Return what a query found."""
    fields = {"items": items, "limit": query.limit, "offset": query.offset, "total": total}
    return construct(PaginatedResult, fields, set(fields))


def checked(model: type[BaseModel], **values: Any) -> dict[str, Any]:
    """Return copies of the values that were given, as the model's fields take them.

    Raises:
        InvalidRequest: Names the value that its field does not take.
    """
    fields = {}
    for name, value in values.items():
        if isinstance(value, Unset):
            continue
        try:
            fields[name] = copy_value(_field(model, name).validate_python(value))
        except ValidationError as exc:
            raise InvalidRequest(f"{name} is {value!r}: {exc.errors()[0]['msg']}") from exc
    return fields


@cache
def _field(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    annotation: Any = model.model_fields[name].annotation
    return TypeAdapter(annotation)
