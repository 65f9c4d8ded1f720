"""What every operation of a store passes: it is counted, the store is open, and what a caller gives is checked."""

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lightning_core.errors import InvalidRequest, StoreClosed, first_fault
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import OPERATIONS, LightningStore, Unset
from lightning_core.store.clock import Clock
from lightning_core.store.copies import copy_value
from lightning_core.store.deadlines import Deadlines
from lightning_core.store.records import Documents, Records
from lightning_core.store.run_end import RunEnd
from lightning_core.store.waits import Ticket, Waits
from lightning_core.types import EnqueueRolloutRequest

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Calls:
    """The calls of a store and its views that are under way, in whatever thread or event loop."""

    def __init__(self) -> None:
        self.under_way: set[object] = set()
        self.closing: list[Ticket] = []

    def wake(self) -> None:
        """Wake those who wait for the end of all calls."""
        for ticket in tuple(self.closing):
            ticket.call()

    async def all_ended(self) -> None:
        """Return when no call is under way."""
        while self.under_way:
            ticket = Ticket()
            self.closing.append(ticket)
            try:
                if self.under_way:  # else the last one has ended just now, and may not have seen the ticket
                    await ticket.future
            finally:
                self.closing.remove(ticket)


def _operation(method: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return an operation of an open store, which closing the store waits for."""

    @functools.wraps(method)
    async def call(self: "StorePart", *args: Any, **kwargs: Any) -> Any:
        calls, this = self._calls, object()
        calls.under_way.add(this)
        try:
            self._check_open()
            return await method(self, *args, **kwargs)
        finally:
            calls.under_way.discard(this)
            if calls.closing and not calls.under_way:
                calls.wake()

    return call


class StorePart(LightningStore):
    """One part of the facade, which makes what is declared here."""

    _backend: StoreBackend
    _run_id: str
    _clock: Clock
    _documents: Documents
    _records: Records
    _waits: Waits
    _calls: Calls
    _deadlines: Deadlines
    _run_end: RunEnd
    _view_of: "StorePart | None"
    """The store that this one is a view of; None where it is not a view."""
    _closed: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in (OPERATIONS & cls.__dict__.keys()) - {"aclose"}:
            setattr(cls, name, _operation(cls.__dict__[name]))

    def _check_open(self) -> None:
        if self._closed or (self._view_of is not None and self._view_of._closed):
            raise StoreClosed(f"the store of run {self._run_id} is closed")


# What callers give


def takes_fields(
    declared: Callable[P, Awaitable[R]],
) -> Callable[[Callable[..., Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Give a method the signature of one of the interface's, and the values of a rollout's fields as one mapping.

    The method is called with the other arguments, and `fields`: the values of those that `EnqueueRolloutRequest` has.
    """
    signature = inspect.signature(declared)

    def decorate(run: Callable[..., Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(declared)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            fields = {name: bound.arguments.pop(name) for name in EnqueueRolloutRequest.model_fields}
            return await run(**bound.arguments, fields=fields)

        return call

    return decorate


def make_request(fields: Mapping[str, Any]) -> EnqueueRolloutRequest:
    """Make a request for a rollout.

    Raises:
        InvalidRequest: Names the field that is wrong.
    """
    try:
        return EnqueueRolloutRequest(**fields)
    except ValidationError as exc:
        raise InvalidRequest(first_fault(exc, shows_input=True)) from exc


def make_requests(rollouts: Any) -> list[EnqueueRolloutRequest]:
    """Return requests for rollouts; a mapping is read as one.

    Raises:
        InvalidRequest: Names the request that is wrong.
    """
    if isinstance(rollouts, str | bytes | Mapping) or not isinstance(rollouts, Iterable):
        raise InvalidRequest(f"rollouts is {rollouts!r}; it takes a sequence of EnqueueRolloutRequest")
    requests = []
    for number, request in enumerate(rollouts):
        if not isinstance(request, EnqueueRolloutRequest):
            try:
                request = EnqueueRolloutRequest.model_validate(request)
            except ValidationError as exc:
                raise InvalidRequest(first_fault(exc, at=f"rollouts[{number}]", shows_input=True)) from exc
        requests.append(request)
    return requests


def as_float(name: str, value: Any) -> float:
    """Return a number.

    Raises:
        InvalidRequest: When it is not a number, or not finite.
    """
    if type(value) is float and math.isfinite(value):  # nearly every time, and much faster than the general way
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidRequest(f"{name} is {value!r}; it is a finite number")
    return float(value)


def as_int(name: str, value: Any) -> int:
    """Return a whole number.

    Raises:
        InvalidRequest: When it is not one.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequest(f"{name} is {value!r}; it is a whole number")
    return int(value)


def as_timeout(name: str, seconds: float | None) -> float | None:
    """Return how long to wait at most, in seconds; None for no limit, which may also be given as infinity.

    Raises:
        InvalidRequest: When it is not a number.
    """
    return None if seconds is None or seconds == math.inf else as_float(name, seconds)


def check_str(name: str, value: Any) -> None:
    """Check a name; None is allowed.

    Raises:
        InvalidRequest: When it is not a string.
    """
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it is a string")


def as_ids(name: str, values: Any) -> list[str]:
    """Return a sequence of ids as a list.

    Raises:
        InvalidRequest: When it is not one: one id alone is not a sequence of one.
    """
    if isinstance(values, str):
        raise InvalidRequest(f"{name} is {values!r}; it takes a sequence of ids, such as [{values!r}]")
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} is {values!r}; it takes a sequence of ids")
    ids = list(values)
    if wrong := [value for value in ids if not isinstance(value, str)]:
        raise InvalidRequest(f"{name} has {wrong[0]!r}; an id is a string")
    return ids


def as_pairs(name: str, values: Any) -> list[tuple[str, str]]:
    """Return a sequence of `(rollout_id, attempt_id)` as a list.

    Raises:
        InvalidRequest: When it is something else.
    """
    try:
        pairs = [(rollout_id, attempt_id) for rollout_id, attempt_id in values]
    except (TypeError, ValueError):
        pairs = [("", None)]
    if not all(isinstance(rollout_id, str) and isinstance(attempt_id, str) for rollout_id, attempt_id in pairs):
        raise InvalidRequest(f"{name} is {values!r}; it takes a sequence of (rollout_id, attempt_id)")
    return pairs


def as_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a copy of a mapping from names to values; an empty one where it was not given.

    Raises:
        InvalidRequest: When it is not a mapping.
    """
    if isinstance(value, Unset):
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidRequest(f"{name} is {value!r}; it is a mapping from names to values")
    copied: dict[str, Any] = copy_value(dict(value))
    return copied


def validate_fields(model: type[BaseModel], **values: Any) -> dict[str, Any]:
    """Return copies of the values that were given, as the model's fields take them.

    Raises:
        InvalidRequest: Names the value that its field does not take.
    """
    fields = {}
    for name, value in values.items():
        if isinstance(value, Unset):
            continue
        try:
            fields[name] = copy_value(_validator(model, name)(value))
        except ValidationError as exc:
            raise InvalidRequest(f"{name} is {value!r}: {exc.errors()[0]['msg']}") from exc
    return fields


@cache
def _validator(model: type[BaseModel], name: str) -> Callable[[Any], Any]:
    annotation: Any = model.model_fields[name].annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter.validator.validate_python
