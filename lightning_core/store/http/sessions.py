"""HTTP sessions of a client: one for each event loop, closed with it, and none that is shared with another process."""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator

import aiohttp

_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0


class _Session:
    """A session, and what closes it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.keeper = self._keep()

    async def _keep(self) -> AsyncGenerator[None, None]:
        # An event loop that ends closes the asynchronous generators begun in it: so it closes these connections.
        try:
            yield
        finally:
            await self.session.close()
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
        made = _Session(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            )
        )
        await anext(made.keeper)
        with self._lock:
            self._of_loop = {other: kept for other, kept in self._of_loop.items() if not other.is_closed()}
            self._of_loop[loop] = made
        return made.session

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
