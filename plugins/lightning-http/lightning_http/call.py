"""A request under way: who asks, about which store and run, for how long; and how errors are answered."""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope, Send

from lightning_core.errors import AccessDenied, InvalidRequest, StoreError
from lightning_core.store.base import LightningStore
from lightning_http import wire
from lightning_http.auth import Identity, Keys, Role, Unauthorized
from lightning_http.body import BodyRefused, ClientGone, ConnectionLimits, Receive, Seconds
from lightning_http.messages import OPENAPI_PATH, RUN_HEADER, STATUS_OF
from lightning_http.metrics import Metrics
from lightning_http.web_pages import require_local, require_same_site

T = TypeVar("T")

_MAX_VIEWS = 256
_RUN_ID = re.compile(r"[\x21-\x7e]{1,200}")


@checked_dataclass(frozen=True)
class Limits(ConnectionLimits):
    """How much one request may ask for."""

    max_wait_seconds: Seconds = 300.0
    """The longest that a request waits; its answer then says that it has to be asked again."""


@dataclass
class Service:
    """A store that is served.

    Args:
        store: The store.
        keys: Who may do what.
        limits: How much one request may ask for.
        local_only: Whether only this machine is meant to ask, without a key: then a browser must not be talked into
            asking under another name.
        cors_allow_origins: The web pages of other sites that may ask, by their origins.
    """

    store: LightningStore
    keys: Keys
    limits: Limits
    local_only: bool
    cors_allow_origins: Collection[str] = ()
    metrics: Metrics = field(default_factory=Metrics)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no more claims are given."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is waited for any more."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each report on an attempt, so that `drain` looks again."""
    hurries: bool = False
    """Whether running attempts are not waited for any more."""
    _views: OrderedDict[str, LightningStore] = field(default_factory=OrderedDict)

    def view(self, run_id: str | None) -> LightningStore:
        """Return the store as one run sees it; None for the run of the store itself.

        Raises:
            InvalidRequest: When it cannot be a run's id.
        """
        if run_id is None or run_id == self.store.run_id:
            return self.store
        view = self._views.get(run_id)
        if view is None:
            if not _RUN_ID.fullmatch(run_id):
                raise InvalidRequest(f"{run_id!r} cannot be a run's id; it has 1 to 200 printable ASCII characters")
            view = self._views[run_id] = self.store.for_run(run_id)
            if len(self._views) > _MAX_VIEWS:
                # Requests that still use it keep it alive.
                self._views.popitem(last=False)
        self._views.move_to_end(run_id)
        return view

    def views(self) -> list[LightningStore]:
        """Return the store as all runs see it that were asked about lately."""
        return [self.store, *self._views.values()]


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a known caller.

    Args:
        service: What all requests share.
        identity: Who asks.
        store: The store, as the run sees it that the request is about.
    """

    service: Service
    identity: Identity
    store: LightningStore

    @classmethod
    def identified(cls, service: Service, headers: Mapping[str, str]) -> "Call":
        """Find out who asks, and about which run.

        Raises:
            Unauthorized: Without a good key.
            AccessDenied: When the key is for an attempt of another run.
        """
        identity = service.keys.identify(headers.get("authorization"), time.time())
        asked, run_id = headers.get(RUN_HEADER), identity.run_id
        if run_id is not None and asked not in (None, run_id):
            raise AccessDenied(f"this key is for an attempt of run {run_id}; it cannot write to run {asked!r}")
        return cls(service, identity, service.view(run_id or asked))

    async def wait(
        self, request: Request, work: Coroutine[Any, Any, T], end: asyncio.Event, *, poll_seconds: float | None
    ) -> tuple[bool, T | None]:
        """Await something that takes its time, as long as the client waits for it.

        Args:
            request: The request, whose body has been read.
            work: What to await; it is cancelled when it is not awaited any more.
            end: Is not waited for longer than until this is set.
            poll_seconds: The longest time to wait, besides the server's own limit.

        Returns:
            Whether it is done, and its result; False and None when it was cut short.

        Raises:
            ClientGone: When the client is.
        """
        limit = self.service.limits.max_wait_seconds
        seconds = limit if poll_seconds is None else min(poll_seconds, limit)
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnected(request.receive))
        ending = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait([task, gone, ending], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(gone, ending, *(() if task.done() else (task,)))
        if not task.cancelled():
            return True, task.result()
        if gone.done() and not gone.cancelled():
            raise ClientGone
        return False, None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Errors

CLIENT_GONE = 499
"""The status in the metrics of a request whose client did not wait for the answer."""


def explain(exc: Exception) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the body by which an error is answered."""
    if isinstance(exc, RequestValidationError | ValidationError):
        faults = exc.errors() if isinstance(exc, RequestValidationError) else wire.faults_of(exc, "body")
        detail = [{name: fault[name] for name in ("loc", "msg", "type")} for fault in faults]
        return 422, _error("InvalidRequest", wire.in_words({**faults[0], "loc": faults[0]["loc"][1:]}), detail)
    if isinstance(exc, BodyRefused):
        return exc.status, _error("InvalidRequest", str(exc))
    if isinstance(exc, Unauthorized):
        return 401, _error("AccessDenied", str(exc))
    if isinstance(exc, StoreError):
        kind = next(kind for kind in type(exc).__mro__ if kind in STATUS_OF)
        return STATUS_OF[kind], _error(kind.__name__, str(exc))
    return 500, _error("InternalError", "the store failed; its log says why")


ANSWERED = (StoreError, BodyRefused, ClientGone, HTTPException, RequestValidationError, ValidationError)
"""What a request may raise by the fault of its client, or of the store; everything else is a bug."""


def answer_error(exc: Exception, request: Request | None = None) -> Response:
    """Return an error's answer, which never has a traceback; with the request, also where there is no route for it."""
    if isinstance(exc, HTTPException) and request is not None:
        return _answer_unknown_route(request, exc)
    if isinstance(exc, ClientGone):
        return Response(status_code=CLIENT_GONE)
    status, body = explain(exc)
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(status)
    return JSONResponse(body, status, headers)


class RequireKey:
    """Serves an application only to those who know the key itself, and to no web page of another site.

    Args:
        app: The application.
        keys: Without a key everybody on this machine may ask; the keys of attempts are refused.
        open_paths: The paths that need no key.
    """

    def __init__(self, app: ASGIApp, keys: Keys, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        try:
            if not self._keys.required:
                require_local(headers)
            require_same_site(scope["method"], headers)
            if scope["path"] not in self._open_paths:
                identity = self._keys.identify(headers.get("authorization"), time.time())
                if identity.role < Role.ALGORITHM:  # an attempt's, signed under the same key
                    raise AccessDenied("the key of an attempt cannot do this; give the server's own key")
        except StoreError as exc:
            await answer_error(exc)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _answer_unknown_route(request: Request, exc: HTTPException) -> Response:
    message = f"this store has no route {request.method} {request.url.path!r}; see {OPENAPI_PATH}"
    return JSONResponse(_error("UnknownRoute", message), exc.status_code, exc.headers)


def _error(error: str, message: str, detail: Any = None) -> dict[str, Any]:
    return {"error": error, "message": message, "detail": message if detail is None else detail}
