"""How much of requests that have not come whole is held at once."""

from collections.abc import Awaitable, Callable

from lightning_core.proxy.exchange import Message, Receive, Send
from lightning_core.proxy.refusals import Refused

App = Callable[[Message, Receive, Send], Awaitable[None]]


class IncomingBodies:
    """Serves an application, whose requests' bodies have a limit in common while they come.

    A body that comes in one piece, and one that comes alone, is taken whatever its size: the limit of each is another.

    Args:
        app: What answers. `Refused` comes to it out of `receive`.
        max_bytes: How much of bodies that have not come whole is held.
    """

    def __init__(self, app: App, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._bytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = _Body(self, receive)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.release()

    def add(self, count: int, of_them: int) -> None:
        """Take bytes of a body that had so many before.

        Raises:
            Refused: When they are too many together with those of others.
        """
        if self._bytes + count > self._max_bytes and self._bytes > of_them:
            raise Refused(
                503,
                "too_many_bytes",
                f"requests that are still coming in have {self._bytes} bytes together, and max_incoming_bytes is "
                f"{self._max_bytes}; try again in a moment",
                retry_after=1.0,
            )
        self._bytes += count

    def remove(self, count: int) -> None:
        """Let go of bytes."""
        self._bytes -= count


class _Body:
    """The body of one request."""

    def __init__(self, all_of_them: IncomingBodies, receive: Receive) -> None:
        self._all = all_of_them
        self._receive = receive
        self._bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message.get("more_body", False):
            count = len(message.get("body", b""))
            self._all.add(count, self._bytes)
            self._bytes += count
        elif self._bytes:
            self.release()
        return message

    def release(self) -> None:
        """Count it no more: it has come whole, or nobody waits for it."""
        self._all.remove(self._bytes)
        self._bytes = 0
