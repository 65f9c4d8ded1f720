"""Requests to a store's server: repeated while it is out of reach, and its errors raised as the store's own."""

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from pydantic_core import from_json
from yarl import URL

from lightning_core.errors import AccessDenied, ConfigError, InvalidRequest, StoreClosed, StoreError, StoreUnavailable
from lightning_http.messages import ERRORS, LEASE_HEADER, PENDING_HEADER, PREFIX, RETRIED_STATUSES, RUN_HEADER

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0


class _Session(NamedTuple):
    """A session, and what closes it."""

    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None, None]


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    # An event loop that ends closes the asynchronous generators begun in it: so it closes these connections.
    try:
        yield
    finally:
        await session.close()
        await asyncio.sleep(0)  # closed transports say so to their protocols


class Sessions:
    """The sessions of one client."""

    def __init__(self) -> None:
        self._of_loop: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._lock = threading.Lock()
        _everywhere.add(self)

    async def current(self) -> aiohttp.ClientSession:
        """Return the session of the running event loop."""
        loop = asyncio.get_running_loop()
        known = self._of_loop.get(loop)
        if known is not None and not known.session.closed:
            return known.session
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0), cookie_jar=aiohttp.DummyCookieJar()
        )
        made = _Session(session, _keep(session))
        await anext(made.keeper)
        with self._lock:
            self._of_loop = {other: kept for other, kept in self._of_loop.items() if not other.is_closed()}
            self._of_loop[loop] = made
        return session

    async def aclose(self) -> None:
        """Close all sessions; requests under way fail."""
        with self._lock:
            sessions, self._of_loop = self._of_loop, {}
        here = asyncio.get_running_loop()
        for loop, kept in sessions.items():
            if loop is here:
                await kept.keeper.aclose()
            elif loop.is_running():
                await _close_in(loop, kept)

    def _forget(self) -> None:
        """Leave what a fork has copied to the process that made it."""
        _orphans.extend(self._of_loop.values())
        self._of_loop = {}
        self._lock = threading.Lock()


async def _close_in(loop: asyncio.AbstractEventLoop, kept: _Session) -> None:
    """Close a session in its event loop; one that ends just now does it by itself."""
    closing = _close(kept)
    try:
        closed = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, loop))
    except RuntimeError:
        closing.close()
        return
    await asyncio.wait([closed], timeout=_CLOSE_SECONDS)


async def _close(kept: _Session) -> None:
    await kept.keeper.aclose()


_everywhere: "weakref.WeakSet[Sessions]" = weakref.WeakSet()
_orphans: list[_Session] = []
"""Sessions of the parent process. Their sockets are its own: closing them here would disturb it."""


def _after_fork() -> None:
    for sessions in list(_everywhere):
        sessions._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_LONGEST_BACKOFF_SECONDS = 2.0

_LOGGED_AFTER_SECONDS = 3.0
"""How long an outage lasts before it is logged, or a tenth of the time that requests are repeated if that is less."""


_SHOWN_BYTES = 200
"""How much of an answer is shown that no store has given."""


class _OutOfReach(Exception):
    """A request that may go better the next time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    body: bytes
    run_id: str
    is_pending: bool
    """Whether it answers a wait that was cut short."""

    def data(self) -> Any:
        """Return the body's JSON."""
        return from_json(self.body)


class Connection:
    """A server, as all views of one client see it.

    Args:
        url: Where it is, such as `http://127.0.0.1:4747`.
        key: Sent with every request; empty for none.
        retry_seconds: How long to repeat a request while the server is out of reach.
        request_seconds: How long one request may take, waits aside.
        first_backoff_seconds: The first pause between two tries; it doubles from one to the next, up to two seconds.

    Raises:
        ConfigError: When the URL is not valid.
    """

    def __init__(
        self, url: str, *, key: str, retry_seconds: float, request_seconds: float, first_backoff_seconds: float
    ) -> None:
        if not _is_address(url):
            raise ConfigError(f"{url!r} is not the address of a store; give one like http://127.0.0.1:4747")
        self.url = url.rstrip("/").removesuffix(PREFIX)
        self.request_seconds = request_seconds
        self.closed = False
        self.lease_seconds: str | None = None
        """How long the server's leases are, as its last answer said."""
        self._retry_seconds = retry_seconds
        self._out_of_reach_since: float | None = None
        """When the outage began that was logged and still lasts, a `time.monotonic` value."""
        self._failing: tuple[float, float] | None = None
        """When the first and the newest try failed since the server's last answer, `time.monotonic` values."""
        self._first_backoff_seconds = first_backoff_seconds
        self._sessions = Sessions()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        extra_seconds: float = 0.0,
        repeated: Callable[[], bytes] | None = None,
    ) -> Answer:
        """Ask the server.

        Args:
            method: GET, POST, PUT or DELETE.
            path: Below the prefix, quoted.
            body: JSON, if any.
            headers: Beyond those of every request.
            extra_seconds: How long the server may wait before it answers.
            repeated: Makes the body of each further try, for a request that waits: one that is answered soon. A try
                that waited would count as part of the outage, and its end as one more failure in that.

        Raises:
            StoreError: The one that the server answered with.
            StoreUnavailable: The server was out of reach for too long.
            StoreClosed: The client was closed.
        """
        url = URL(f"{self.url}{PREFIX}{path}", encoded=True)
        sent = {**self._headers, **headers}
        if body is not None:
            sent["content-type"] = "application/json"
        timeout = aiohttp.ClientTimeout(total=self.request_seconds + extra_seconds, sock_connect=_CONNECT_SECONDS)
        began, backoff_seconds = time.monotonic(), self._first_backoff_seconds
        failing_since: float | None = None  # not since it began: a try without an answer takes long, and is repeated
        while True:
            try:
                return await self._ask(method, url, body, sent, timeout)
            except _OutOfReach as exc:
                now = time.monotonic()
                if repeated is not None:
                    body, repeated, began = repeated(), None, now  # it was no outage as long as the server waited
                failing_since = now if failing_since is None else failing_since
                seconds = max(now - failing_since, self._record_failure(now))
                if seconds >= self._retry_seconds:
                    raise StoreUnavailable(
                        f"the store at {self.url} was out of reach for {max(now - began, seconds):.1f} s: {exc}"
                    ) from exc
                self._log_outage(now - failing_since, exc)
            await asyncio.sleep(backoff_seconds + random.uniform(0, self._first_backoff_seconds))
            backoff_seconds = min(2 * backoff_seconds, _LONGEST_BACKOFF_SECONDS)

    def _record_failure(self, now: float) -> float:
        """Return for how long all requests together have failed."""
        first, newest = self._failing or (now, now)
        # A failure of long ago is not part of this outage: there was no request in between.
        self._failing = first, _ = (first if now - newest <= self._retry_seconds else now), now
        return now - first

    def _log_outage(self, seconds: float, error: _OutOfReach) -> None:
        """Log once that the server is out of reach, unless that has only just begun."""
        if self._out_of_reach_since is None and seconds >= min(_LOGGED_AFTER_SECONDS, self._retry_seconds / 10):
            self._out_of_reach_since = time.monotonic() - seconds
            logger.warning(
                "lightning.store_out_of_reach url=%s: %s; each request is repeated for %g s",
                self.url,
                error,
                self._retry_seconds,
            )

    def _log_end_of_outage(self) -> None:
        since, self._out_of_reach_since = self._out_of_reach_since, None
        if since is not None:
            seconds = round(time.monotonic() - since, 1)
            logger.warning("lightning.store_reached_again url=%s after_seconds=%s", self.url, seconds)

    def check_open(self) -> None:
        """Return if there may be requests.

        Raises:
            StoreClosed: After `aclose`.
        """
        if self.closed:
            raise StoreClosed(f"the client of the store at {self.url} is closed")

    async def _ask(
        self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> Answer:
        self.check_open()
        session = await self._sessions.current()
        try:
            async with session.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                payload = await response.read()
        except TimeoutError as exc:
            raise _OutOfReach(f"no answer within {timeout.total:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            self.check_open()
            raise _OutOfReach(str(exc) or type(exc).__name__) from exc
        except RuntimeError:  # what aiohttp says of a session that was closed meanwhile
            self.check_open()
            raise
        if response.status not in RETRIED_STATUSES and self._failing is not None:
            self._failing = None
            self._log_end_of_outage()
        if response.status < 300:
            self.lease_seconds = response.headers.get(LEASE_HEADER)
            run_id, pending = response.headers.get(RUN_HEADER), response.headers.get(PENDING_HEADER)
            if run_id is None:  # every store says it
                raise self._no_store(response.status, payload)
            return Answer(payload, run_id, pending == "true")
        raise self._error(response.status, payload)

    def _error(self, status: int, payload: bytes) -> Exception:
        try:
            error = from_json(payload)
            name, message = str(error["error"]), str(error["message"])
        except (ValueError, TypeError, KeyError):
            name, message = "", _shown(payload)
        if status in RETRIED_STATUSES:
            return _OutOfReach(f"it answered {status}: {message}")
        if status in (401, 403):
            return AccessDenied(f"the store at {self.url} refuses: {message}")
        if name in ERRORS:
            return ERRORS[name](message)
        if status == 413:  # of a gateway, which takes smaller requests than the store
            return InvalidRequest(f"{self.url} answered 413: {message}")
        if name:
            return StoreError(f"the store at {self.url} answered {status}: {message}")
        return self._no_store(status, payload)

    def _no_store(self, status: int, payload: bytes) -> StoreError:
        return StoreError(f"{self.url} answered {status}: {_shown(payload)!r}; is it a Lightning store?")

    async def aclose(self) -> None:
        """Close all connections; requests under way raise `StoreClosed`."""
        self.closed = True
        await self._sessions.aclose()


def _shown(body: bytes) -> str:
    return body[:_SHOWN_BYTES].decode("utf-8", "replace")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, or a bracket that is not closed
        return False
