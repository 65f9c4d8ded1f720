"""The end of what a program prints."""

import asyncio


class Tail(asyncio.Protocol):
    """Reads a pipe to its end, and keeps the last bytes: a program never waits for somebody to read it.

    Args:
        max_bytes: How many are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.size = 0
        """How many bytes came."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the pipe has ended: nobody holds its other end."""

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.size += len(data)
        self._kept += data
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: -self._max_bytes]

    def connection_lost(self, error: Exception | None) -> None:
        """Take note of the end."""
        if not self.ended.done():
            self.ended.set_result(None)

    def text(self) -> str:
        """Return what is kept; what is no UTF-8 is replaced."""
        return self._kept[-self._max_bytes :].decode("utf-8", "replace")
