"""A store that is somewhere else."""

import asyncio
import functools
import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode

from lightning_core.deprecated import deprecated
from lightning_core.errors import InvalidRequest, NotFound, StoreClosed, StoreError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store.base import LightningStore, LightningStoreCapabilities, Unset
from lightning_core.store.operations import as_ids, as_int, as_timeout, make_request, make_requests, takes_fields
from lightning_core.store.query import check_page
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    Span,
)
from lightning_core.types.span import plain_attributes
from lightning_http import wire
from lightning_http.connection import Answer, Connection
from lightning_http.messages import MAX_CLAIMED, MAX_ENQUEUED, PREFIX, REQUEST_HEADER, RUN_HEADER, TRACES_PATH
from lightning_http.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    # Most methods are made below, in a loop. For a type checker, take them from where they are written out.
    from lightning_core.store.facade import StoreFacade as _Complete
else:
    _Complete = LightningStore

_MAX_WAIT_SECONDS = 1e9
_MAX_ATTEMPT_KEYS = 4096

_REPEATED_POLL_SECONDS = 1.0
"""How long a request waits that is repeated in an outage: its answer says that the outage is over."""


class LightningStoreClient(_Complete):
    """The store behind a `LightningStoreServer`, from any event loop, thread or process.

    A request is repeated while the server is out of reach, which is harmless: every change has a request id. When it
    stays out of reach, that is a `StoreUnavailable`, never an empty answer. Everything else is as the store itself
    would have it, its errors included, but for three things: pages of more than `page_size` records are asked for one
    after the other; more rollouts than that are enqueued by several requests, each of them whole or not at all; and of
    spans whose first answer was lost it is not known any more which of them were new.

    It can be pickled, and used after a fork. Connections are closed with the event loop that they belong to, at the
    latest.

    Args:
        url: Where the server is, such as `http://127.0.0.1:4747`.
        key: What to say to it; None for the variable `AGL_KEY`, `""` for nothing.
        run_id: The run; None for the server's own, which is known after the first answer.
        retry_seconds: How long to repeat a request while the server is out of reach.
        request_seconds: How long one request may take, waits aside.
        poll_seconds: How long one request waits; longer waits are several. Proxies often end one after 60 s.
        page_size: How many records to ask for at once; no more than the server allows.
        first_backoff_seconds: The first pause between two tries; later ones are longer, up to two seconds.
    """

    is_remote = True

    @deprecated(
        renamed={"server_address": "url", "request_timeout": "request_seconds"},
        converted={"retry_delays": ("retry_seconds", sum)},
        without_effect={
            "health_retry_delays": "a request is repeated itself, for retry_seconds=",
            "connection_timeout": "request_seconds= limits the connection, too",
        },
    )
    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        run_id: str | None = None,
        retry_seconds: float = 30.0,
        request_seconds: float = 30.0,
        poll_seconds: float = 50.0,
        page_size: int = 10_000,
        first_backoff_seconds: float = 0.1,
    ) -> None:
        of_connection: dict[str, Any] = {
            "key": (os.environ.get(KEY_VARIABLE) if key is None else key) or "",
            "retry_seconds": retry_seconds,
            "request_seconds": request_seconds,
            "first_backoff_seconds": first_backoff_seconds,
        }
        self._connection = Connection(url, **of_connection)
        self._options: dict[str, Any] = {**of_connection, "poll_seconds": poll_seconds, "page_size": page_size}
        self._known_run_id = run_id
        self._is_view = self._is_closed = False
        self._lock = threading.Lock()
        self._attempt_keys: OrderedDict[str, str] = OrderedDict()

    # What it is

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    @property
    def server_address_root(self) -> str:
        """The same as `url`, as agentlightning 0.3 calls it."""
        return self.url

    @property
    def server_address(self) -> str:
        """Where the routes of the REST API begin, such as `http://127.0.0.1:4747/v1/agl`."""
        return self.url + PREFIX

    def otlp_traces_endpoint(self) -> str:
        """Return where OpenTelemetry's exporters send spans."""
        return self.url + TRACES_PATH

    @property
    def run_id(self) -> str:
        """The run whose records this store shows.

        Raises:
            StoreError: When none was given, and the server has not been asked anything yet.
        """
        if self._known_run_id is None:
            raise StoreError(
                f"the run of the store at {self.url} is not known yet; use 'async with', or give the client a run_id"
            )
        return self._known_run_id

    def find_run_id(self) -> str:
        if self._known_run_id is None:
            # In an event loop of its own: the caller's, if there is one, does not run meanwhile.
            with ThreadPoolExecutor(1, thread_name_prefix="run id") as thread:
                thread.submit(asyncio.run, self._ask("GET", "/run")).result()
        return self.run_id

    def for_run(self, run_id: str) -> "LightningStoreClient":
        self._check_open()
        view = object.__new__(LightningStoreClient)  # it shares the connections
        vars(view).update(vars(self), _known_run_id=run_id, _is_view=True)
        return view

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    @property
    def lease_seconds(self) -> float | None:
        """How long the server's leases are; None until it has answered something, or where it does not say."""
        seconds = self._connection.lease_seconds
        return None if seconds is None else float(seconds)

    def attempt_key(self, attempt: Attempt) -> str | None:
        """Return the key that came with the claim of an attempt: it can write spans of that attempt, and nothing else.

        Returns:
            The key, as a bearer token; None where the server wants no keys, or the attempt was claimed by another
            client or long ago.
        """
        return self._attempt_keys.get(attempt.attempt_id)

    def __reduce__(self) -> Any:
        return functools.partial(LightningStoreClient, self.url, run_id=self._known_run_id, **self._options), ()

    # From beginning to end

    async def __aenter__(self) -> Self:
        await self._ask("GET", "/run")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the store, and the connections where it is not another's `for_run`. Idempotent."""
        self._is_closed = True
        if not self._is_view:
            await self._connection.aclose()

    async def close(self) -> None:
        """The same as `aclose`, as agentlightning 0.3 calls it."""
        await self.aclose()

    # Requests

    def _check_open(self) -> None:
        if self._is_closed or self._connection.closed:
            raise StoreClosed(f"the store of run {self._known_run_id or '(not known yet)'} is closed")

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        request_id: str | None = None,
        extra_seconds: float = 0.0,
        repeated: Callable[[], bytes] | None = None,
    ) -> Answer:
        payload = None if body is None else wire.encode(body)
        headers = {}
        if self._known_run_id is not None:
            headers[RUN_HEADER] = self._known_run_id
        if request_id is not None:
            headers[REQUEST_HEADER] = request_id
        self._check_open()
        try:
            answer = await self._connection.request(
                method, path, body=payload, headers=headers, extra_seconds=extra_seconds, repeated=repeated
            )
        except StoreClosed:
            self._check_open()
            raise
        if self._known_run_id is None:
            self._known_run_id = answer.run_id
        return answer

    async def _call(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        """Carry out a method of the table.

        Args:
            operation: The method.
            arguments: Its arguments by name; those that are `UNSET` are not sent.
        """
        given = {name: value for name, value in arguments.items() if not isinstance(value, Unset)}
        for name, newer in operation.deprecated.items():
            value = given.pop(name, None)
            if given.get(newer) is None:
                given[newer] = value
        given |= {name: check(name, given[name]) for name, check in _CHECKS.items() if name in given}
        request_id = given.pop("request_id", None)
        if request_id is None and operation.takes_request_id and operation.always_has_id:
            request_id = secrets.token_hex(12)
        path = operation.path.replace(":path}", "}").format(
            **{name: quote(given.pop(name), safe="") for name in operation.path_names}
        )
        if operation.is_query:
            return await self._find(operation, path + "/search", given)
        body: Any = {operation.renamed.get(name, name): value for name, value in given.items()}
        if operation.body is not None:
            query = {name: value for name, value in body.items() if name != operation.body and value is not None}
            path, body = f"{path}?{urlencode(query)}" if query else path, dict(body[operation.body])
        if operation.waits is not None and given[operation.waits] != 0.0:
            data = await self._await(path, body, operation.waits, request_id)
        elif operation.method == "GET" and body:
            data = (await self._ask("GET", f"{path}?{urlencode(body)}")).data()
        else:
            try:
                sent = body if operation.fields or operation.body is not None else None
                data = (await self._ask(operation.method, path, sent, request_id=request_id)).data()
            except NotFound:
                if operation.missing is None:
                    raise
                return None
        if operation.claims:
            for claimed in data if isinstance(data, list) else [data]:
                self._keep_key(claimed)
        if operation.returns is type(None):
            return None
        return operation.decode(data if operation.wrapped_in is None else data[operation.wrapped_in])

    async def _find(self, operation: Operation, path: str, given: dict[str, Any]) -> PaginatedResult[Any]:
        """Ask for a page of a query's result, which may be several of the server's."""
        limit, offset = given.pop("limit", -1), given.pop("offset", 0)
        check_page(limit, offset)
        size = self._options["page_size"]
        items: list[Any] = []
        while True:
            wanted = size if limit == -1 else min(size, limit - len(items))
            data = (await self._ask("POST", path, {**given, "limit": wanted, "offset": offset + len(items)})).data()
            items += operation.decode(data["items"])
            complete = offset + len(items) >= data["total"] or (limit != -1 and len(items) >= limit)
            if complete or not data["items"]:
                return PaginatedResult.model_construct(items=items, limit=limit, offset=offset, total=data["total"])

    async def _await(self, path: str, body: Mapping[str, Any], waits: str, request_id: str | None) -> Any:
        """Ask for something that takes its time, again and again until it is there or the time has passed."""
        poll_seconds, seconds = self._options["poll_seconds"], body[waits]
        left = None if seconds is None else min(max(seconds, 0.0), _MAX_WAIT_SECONDS)
        until = None if left is None else time.monotonic() + left
        while True:
            asked = {**body, waits: left, "poll_seconds": poll_seconds}
            soon = {**asked, "poll_seconds": min(poll_seconds, _REPEATED_POLL_SECONDS)}
            answer = await self._ask(
                "POST",
                path,
                asked,
                request_id=request_id,
                extra_seconds=poll_seconds,
                repeated=functools.partial(wire.encode, soon),
            )
            if not answer.is_pending:
                return answer.data()
            left = None if until is None else max(until - time.monotonic(), 0.0)

    def _keep_key(self, claimed: Mapping[str, Any]) -> None:
        key = claimed.get("attempt_key")
        if key is not None:
            with self._lock:
                self._attempt_keys[claimed["attempt"]["attempt_id"]] = key
                if len(self._attempt_keys) > _MAX_ATTEMPT_KEYS:
                    self._attempt_keys.popitem(last=False)

    # Methods that are more than one request of the table

    @takes_fields(LightningStore.enqueue_rollout)
    async def enqueue_rollout(self, fields: Mapping[str, Any], request_id: str | None) -> Rollout:
        return (await self.enqueue_many_rollouts([make_request(fields)], request_id=request_id))[0]

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        requests = make_requests(rollouts)
        enqueued: list[Rollout] = []
        for number, start in enumerate(range(0, max(len(requests), 1), MAX_ENQUEUED)):
            part_id = f"{request_id}/{number}" if request_id and number else request_id
            part = {"rollouts": requests[start : start + MAX_ENQUEUED], "request_id": part_id}
            enqueued += await self._call(OPERATIONS["enqueue_many_rollouts"], part)
        return enqueued

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float | None = 0.0,
        request_id: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        limit = min(as_int("limit", limit), MAX_CLAIMED)
        claim: dict[str, Any] = {"limit": limit, "worker_id": worker_id, "request_id": request_id}
        # Below 1 it asks only for what the request id claimed before.
        claim["wait_seconds"] = as_timeout("wait_seconds", wait_seconds) if limit > 0 else 0.0
        claimed: list[AttemptedRollout] = await self._call(OPERATIONS["dequeue_many_rollouts"], claim)
        return claimed

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        given = list(spans)
        try:
            numbers = (await self._ask("POST", "/spans/bulk", {"spans": given})).data()["sequence_ids"]
        except InvalidRequest as exc:
            try:  # the server only sees what JSON made of a span, if it made anything
                for span in given:
                    plain_attributes(span.attributes)
            except ValueError as fault:
                raise InvalidRequest(str(fault)) from exc
            raise
        return [
            span if span.sequence_id == number else span.model_copy(update={"sequence_id": number})
            for span, number in zip(given, numbers, strict=True)
            if number is not None
        ]

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        saved = {"name": name, "state": json.loads(text), "request_id": request_id}
        await self._call(OPERATIONS["save_state"], saved)


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "rollout_ids": as_ids,
    "timeout": as_timeout,
}
"""What the client checks itself, as the store would: the server could not tell what was meant."""


def _method(operation: Operation) -> Any:
    bind = operation.signature.bind

    @functools.wraps(operation.function)
    async def call(self: LightningStoreClient, *args: Any, **kwargs: Any) -> Any:
        bound = bind(self, *args, **kwargs)
        bound.apply_defaults()
        del bound.arguments["self"]
        return await self._call(operation, bound.arguments)

    return call


for _operation in OPERATIONS.values():
    if _operation.name not in LightningStoreClient.__dict__:
        setattr(LightningStoreClient, _operation.name, _method(_operation))
