"""What every operation of a store passes: it is counted, the store is open, a query is checked, a page is made."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel

from lightning_core.errors import StoreClosed
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import OPERATIONS, LightningStore
from lightning_core.store.clock import Clock
from lightning_core.store.deadlines import Deadlines
from lightning_core.store.query import Query, make_query
from lightning_core.store.records import Documents, Records
from lightning_core.store.run_end import RunEnd
from lightning_core.store.waits import Ticket, Waits
from lightning_core.types import PaginatedResult

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


def make_page(items: Sequence[T], query: Query, total: int) -> PaginatedResult[T]:
    """Return what a query found."""
    return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)


_OLDER_NAMES = {"status": "status_in", "rollout_ids": "rollout_id_in"}


def query_method(
    declared: Callable[P, Awaitable[R]], model: type[BaseModel]
) -> Callable[[Callable[..., Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Give a method the signature of one of the interface's queries; its conditions and its page become a `Query`.

    The method is called with the arguments that are not options, and then the query.
    """
    signature = inspect.signature(declared)
    parameters = signature.parameters.values()
    names = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}

    def decorate(run: Callable[..., Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(run)
        async def find(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            is_twice = len({*names[: len(args)], *kwargs}) < len(args) + len(kwargs)
            if is_twice or given.keys() != signature.parameters.keys():
                signature.bind(*args, **kwargs)  # says what is wrong, much slower
            others = [given.pop(name) for name in names]
            for old, new in _OLDER_NAMES.items():
                if (value := given.pop(old, None)) is not None and given[new] is None:
                    given[new] = value
            return await run(*others, make_query(model, **given))

        find.__signature__ = signature  # type: ignore[attr-defined]
        find.__doc__ = declared.__doc__
        return find

    return decorate


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
