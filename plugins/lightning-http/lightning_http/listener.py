"""uvicorn inside the caller's event loop: no signals, no polling, and a socket that is bound here."""

import asyncio
import functools
import socket
from typing import Any

import uvicorn

from lightning_core.errors import ConfigError
from lightning_http.body import ConnectionLimits
from lightning_http.bounded import BoundedProtocol

_BACKLOG = 2048

_TURNS = 5
"""How often an event loop goes round until a connection that it has accepted is known here; two are enough."""

_FLUSH_SECONDS = 1.0
"""How long peers may take to read their last answers, once the server has stopped."""
_LOOKS = 100


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound; 0 lets the system choose the port.

    Raises:
        ConfigError: Names the host or the port that cannot be had.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; it is from 0 (the system chooses) to 65535")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise ConfigError(f"host {host!r} is unknown: {exc}") from exc
    family, kind, protocol, _, address = addresses[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as exc:
        bound.close()
        hint = "; give another one, or 0 to let the system choose" if port else ""
        raise ConfigError(f"cannot serve on port {port} of {host}: {exc.strerror or exc}{hint}") from exc
    bound.setblocking(False)
    return bound


class Listener(uvicorn.Server):
    """Serves an application on a bound socket until it is told to stop.

    Args:
        application: What answers.
        bound: The socket, which is closed in the end.
        limits: How much one connection may send, and how long it may take; None for the defaults.
    """

    def __init__(self, application: Any, bound: socket.socket, limits: ConnectionLimits | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                log_config=None,
                access_log=False,
                http=functools.partial(BoundedProtocol, limits=limits or ConnectionLimits()),  # type: ignore[arg-type]
                ws="none",
                backlog=_BACKLOG,
                proxy_headers=False,
                server_header=False,
                date_header=False,
            )
        )
        self._socket = bound
        self._starting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Return when connections are accepted."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        self._starting = asyncio.create_task(self.startup(sockets=[self._socket]), name="store server")
        await asyncio.shield(self._starting)

    async def close(self, *, seconds: float) -> None:
        """Accept nothing more, give requests so many seconds to end, and return when nothing is left."""
        if self._starting is None:
            self._socket.close()
            return
        await asyncio.wait({self._starting})
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            # asyncio loses a connection, unclosed, that it has accepted when its server is closed but not yet made a
            # transport of (https://github.com/python/cpython/issues/109564). So accept no more, and let it do that.
            loop.remove_reader(self._socket)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        self._socket.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()  # once its peer has read what it is still sent
        await asyncio.sleep(0)  # closed transports say so to their protocols
        for _ in range(_LOOKS):
            if not self.server_state.connections:
                break
            await asyncio.sleep(_FLUSH_SECONDS / _LOOKS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for server in self.servers:
            await server.wait_closed()
        await asyncio.sleep(0)
