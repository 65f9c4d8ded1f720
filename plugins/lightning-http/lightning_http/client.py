"""A store that is somewhere else."""

import asyncio
import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from lightning_core.errors import NotFound, StoreClosed, StoreError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store.base import LightningStoreCapabilities, LightningStoreStatistics
from lightning_core.store.query import check_page
from lightning_core.types import PaginatedResult
from lightning_http import wire
from lightning_http.client_records import RecordsClient, WorkClient
from lightning_http.connection import Answer, Connection
from lightning_http.messages import REQUEST_HEADER, RUN_HEADER, TRACES_PATH

T = TypeVar("T")


class ClosableWaits:
    """The waits of one store, in whichever event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: set[asyncio.Future[None]] = set()
        self._closed = False

    async def unless_closed(self, work: Coroutine[Any, Any, T], message: str) -> T:
        """Await something.

        Raises:
            StoreClosed: With this message, when `close` was called in the meantime.
        """
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._closed:
                work.close()
                raise StoreClosed(message)
            self._ends.add(end)
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self._lock:
                self._ends.discard(end)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            raise StoreClosed(message)
        result: T = task.result()
        return result

    def close(self) -> None:
        """End all waits, from any thread."""
        with self._lock:
            self._closed = True
            ends, self._ends = self._ends, set()
        for end in ends:
            loop = end.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, end)


def _finish(end: "asyncio.Future[None]") -> None:
    if not end.done():
        end.set_result(None)


_MAX_WAIT_SECONDS = 1e9
_MAX_ATTEMPT_KEYS = 4096


class LightningStoreClient(WorkClient, RecordsClient):
    """The store behind a `LightningStoreServer`, from any event loop, thread or process.

    A request is repeated while the server is out of reach, which is harmless: every change has a request id. When it
    stays out of reach, that is a `StoreUnavailable`, never an empty answer. Everything else is as the store itself
    would have it, its errors included, but for two things: pages of more than `page_size` records are asked for one
    after the other, and of spans whose first answer was lost it is not known any more which of them were new.

    It can be pickled, and used after a fork. Connections are closed with the event loop that they belong to, at the
    latest.

    Args:
        url: Where the server is, such as `http://127.0.0.1:4747`.
        key: What to say to it; None for the variable `AGL_KEY`, `""` for nothing.
        run_id: The run; None for the server's own, which is known after the first answer.
        retry_seconds: How long to repeat a request while the server is out of reach.
        request_seconds: How long one request may take, waits aside.
        poll_seconds: How long one request waits; longer waits are several.
        page_size: How many records to ask for at once; no more than the server allows.
        first_backoff_seconds: The first pause between two tries; later ones are longer, up to two seconds.
    """

    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        run_id: str | None = None,
        retry_seconds: float = 30.0,
        request_seconds: float = 30.0,
        poll_seconds: float = 20.0,
        page_size: int = 10_000,
        first_backoff_seconds: float = 0.1,
    ) -> None:
        self._options: dict[str, Any] = {
            "key": (os.environ.get(KEY_VARIABLE) if key is None else key) or "",
            "retry_seconds": retry_seconds,
            "request_seconds": request_seconds,
            "poll_seconds": poll_seconds,
            "page_size": page_size,
            "first_backoff_seconds": first_backoff_seconds,
        }
        self._connection = Connection(
            url,
            key=self._options["key"] or None,
            retry_seconds=retry_seconds,
            request_seconds=request_seconds,
            first_backoff_seconds=first_backoff_seconds,
        )
        self._begin(run_id, root=self)

    def _begin(self, run_id: str | None, *, root: "LightningStoreClient") -> None:
        self._run_id = run_id
        self._root = root
        self._closed = False
        self._waits = ClosableWaits()
        self._views: weakref.WeakSet[LightningStoreClient] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._attempt_keys: OrderedDict[str, str] = OrderedDict()

    # What it is

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    def otlp_traces_endpoint(self) -> str:
        """Return where OpenTelemetry's exporters send spans."""
        return self.url + TRACES_PATH

    @property
    def run_id(self) -> str:
        """The run whose records this store shows.

        Raises:
            StoreError: When none was given, and the server has not been asked anything yet.
        """
        if self._run_id is None:
            raise StoreError(
                f"the run of the store at {self.url} is not known yet; use 'async with', or give the client a run_id"
            )
        return self._run_id

    def find_run_id(self) -> str:
        if self._run_id is None:
            # In an event loop of its own: the caller's, if there is one, does not run meanwhile.
            with ThreadPoolExecutor(1, thread_name_prefix="run id") as thread:
                thread.submit(asyncio.run, self._get("/run")).result()
        return self.run_id

    def for_run(self, run_id: str) -> "LightningStoreClient":
        self._check_open()
        view = LightningStoreClient.__new__(LightningStoreClient)
        view._options, view._connection = self._options, self._connection
        view._begin(run_id, root=self._root)
        with self._root._lock:
            self._root._views.add(view)
        return view

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}

    @property
    def lease_seconds(self) -> float | None:
        """How long the server's leases are; None until it has answered something, or where it does not say."""
        told = self._connection.lease_seconds
        return None if told is None else float(told)

    async def statistics(self) -> LightningStoreStatistics:
        statistics: LightningStoreStatistics = await self._get("/statistics")
        return statistics

    def attempt_key(self, attempt_id: str) -> str | None:
        """Return the key that came with the claim of an attempt: it can write spans of that attempt, and nothing else.

        Returns:
            The key, as a bearer token; None where the server wants no keys, or the attempt was claimed by another
            client or long ago.
        """
        return self._attempt_keys.get(attempt_id)

    def __reduce__(self) -> Any:
        return _again, (self.url, self._options, self._run_id)

    # From beginning to end

    async def __aenter__(self) -> Self:
        await self._get("/run")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._close_view()
        if self._root is self:
            with self._lock:
                views = tuple(self._views)
            for view in views:
                view._close_view()
            await self._connection.aclose()

    def _close_view(self) -> None:
        self._closed = True
        self._waits.close()

    def _check_open(self) -> None:
        if self._closed or self._root._closed:
            raise StoreClosed(self._closed_message())

    def _closed_message(self) -> str:
        return f"the store of run {self._run_id or '(not known yet)'} is closed"

    # Requests

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        request_id: str | None = None,
        extra_seconds: float = 0.0,
    ) -> Answer:
        self._check_open()
        payload = None if body is None else wire.encode(body)
        headers = {}
        if self._run_id is not None:
            headers[RUN_HEADER] = self._run_id
        if request_id is not None:
            headers[REQUEST_HEADER] = request_id
        try:
            answer = await self._connection.request(
                method, path, body=payload, headers=headers, extra_seconds=extra_seconds
            )
        except StoreClosed as exc:
            raise StoreClosed(self._closed_message()) from exc
        if self._run_id is None:
            self._run_id = answer.run_id
        return answer

    async def _get(self, path: str) -> Any:
        return (await self._ask("GET", path)).data()

    async def _get_or_none(self, path: str) -> Any:
        try:
            return await self._get(path)
        except NotFound:
            return None

    async def _change(self, path: str, body: Any, request_id: str | None, *, method: str = "POST") -> Any:
        """Ask for a change, under an id, so that the request can be repeated."""
        return (await self._ask(method, path, body, request_id=request_id or secrets.token_hex(12))).data()

    async def _search(self, path: str, body: Any) -> Any:
        return (await self._ask("POST", path, body)).data()

    async def _await(
        self, path: str, body: Mapping[str, Any], name: str, seconds: float | None, *, request_id: str | None = None
    ) -> Any:
        """Ask for something that takes its time, again and again until it is there or the time has passed.

        Args:
            path: What to ask.
            body: The rest of the request.
            name: The field that says how long to wait.
            seconds: How long to wait; None without limit.
            request_id: The same for all requests.
        """
        poll_seconds = self._options["poll_seconds"]

        async def asking() -> Any:
            left = None if seconds is None else min(max(seconds, 0.0), _MAX_WAIT_SECONDS)
            until = None if left is None else time.monotonic() + left
            while True:
                asked = {**body, name: left, "poll_seconds": poll_seconds}
                answer = await self._ask("POST", path, asked, request_id=request_id, extra_seconds=poll_seconds)
                if not answer.is_pending:
                    return answer.data()
                left = None if until is None else max(until - time.monotonic(), 0.0)

        self._check_open()
        return await self._waits.unless_closed(asking(), self._closed_message())

    async def _find(
        self, path: str, body: Mapping[str, Any], limit: int, offset: int, read: Callable[[Any], list[T]]
    ) -> PaginatedResult[T]:
        """Ask for a page of a query's result, which may be several of the server's."""
        check_page(limit, offset)
        size = self._options["page_size"]
        items: list[T] = []
        while True:
            wanted = size if limit == -1 else min(size, limit - len(items))
            data = await self._search(path, {**body, "limit": wanted, "offset": offset + len(items)})
            items += read(data["items"])
            complete = offset + len(items) >= data["total"] or (limit != -1 and len(items) >= limit)
            if complete or not data["items"]:
                return PaginatedResult.model_construct(items=items, limit=limit, offset=offset, total=data["total"])

    def _keep_key(self, claimed: Mapping[str, Any]) -> None:
        key = claimed.get("attempt_key")
        if key is not None:
            with self._lock:
                self._attempt_keys[claimed["attempt"]["attempt_id"]] = key
                if len(self._attempt_keys) > _MAX_ATTEMPT_KEYS:
                    self._attempt_keys.popitem(last=False)


def _again(url: str, options: Mapping[str, Any], run_id: str | None) -> LightningStoreClient:
    return LightningStoreClient(url, run_id=run_id, **options)
