"""Between a worker and the process that started it: requests, answers and notes, both ways, over a pair of sockets.

Both ends are this program, and nobody else has the sockets: so what goes over them is pickled.
"""

import asyncio
import pickle
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from lightning_core.errors import (
    BudgetExhausted,
    ConfigError,
    LightningError,
    ProxyError,
    RegistryError,
    StoreUnavailable,
)
from lightning_core.store import LightningStore
from lightning_proxy.control import CallsLost, Settings
from lightning_proxy.owner import Owner
from lightning_proxy.spans import Capture


@dataclass(frozen=True, slots=True)
class Task:
    """The same for all workers, and for those that replace them."""

    store: LightningStore | None
    """A client of the store's server; None to record nothing."""
    key: str | None = field(repr=False)
    settings: Settings
    """Of one worker."""
    capture: Capture
    has_budget: bool


@dataclass(slots=True)
class State:
    """What was said since the start; a worker that comes later is told all of it."""

    model_list: Sequence[Mapping[str, Any]] = ()
    list_version: int = 1
    weight_version: str | None = None
    is_paused: bool = False
    pause_seconds: float | None = None
    """How long calls wait for the end of the pause; None for as long as usual."""
    bound: dict[str, Owner] = field(default_factory=dict)


_LENGTH_BYTES = 4
_KINDS: tuple[type[LightningError], ...] = (
    BudgetExhausted,
    CallsLost,
    ConfigError,
    RegistryError,
    StoreUnavailable,
    ProxyError,
)
"""What may be raised at the other end; anything else is a `ProxyError` here. A subclass stands before its base."""


class ChannelClosed(ProxyError):
    """The other end is gone."""


class Channel(asyncio.Protocol):
    """One end.

    Args:
        answer: Answers a request, which is a name and its arguments; its exceptions reach the other end.
        note: Takes a note, of which no answer is expected.
    """

    def __init__(
        self, answer: Callable[[str, tuple[Any, ...]], Awaitable[Any]], note: Callable[[str, tuple[Any, ...]], None]
    ) -> None:
        self._answer = answer
        self._note = note
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end is gone, or this one was closed."""

    @classmethod
    async def over(
        cls,
        end: socket.socket,
        answer: Callable[[str, tuple[Any, ...]], Awaitable[Any]],
        note: Callable[[str, tuple[Any, ...]], None],
    ) -> "Channel":
        """Make one end of a connected socket, which it closes."""
        end.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: cls(answer, note), sock=end)
        return channel

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Ask the other end for something, and return what it answers.

        Raises:
            ChannelClosed: When it is gone.
            LightningError: What it raised.
        """
        if self._transport is None:
            raise ChannelClosed("the other process of the proxy has ended")
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._write(("ask", number, name, arguments))
        try:
            return await asked
        finally:
            self._asked.pop(number, None)

    def tell(self, name: str, *arguments: Any) -> None:
        """Tell the other end something; it is lost where that is gone."""
        if self._transport is not None:
            self._write(("tell", 0, name, arguments))

    async def aclose(self) -> None:
        """Close this end, and with it the other one. What is still being answered here is cancelled."""
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait((self.closed,))
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        start = 0
        while len(data) - start >= _LENGTH_BYTES:
            end = start + _LENGTH_BYTES + int.from_bytes(data[start : start + _LENGTH_BYTES])
            if len(data) < end:
                break
            self._take(*pickle.loads(data[start + _LENGTH_BYTES : end]))
            start = end
        self._rest = data[start:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ChannelClosed("the other process of the proxy has ended"))
        self.closed.set_result(None)

    # Messages

    def _take(self, kind: str, number: int, what: Any, value: Any) -> None:
        if kind == "tell":
            self._note(what, value)
        elif kind == "ask":
            task = asyncio.create_task(self._reply(number, what, value), name=f"answer of {what}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (asked := self._asked.get(number)) is not None and not asked.done():
            if what is None:
                asked.set_result(value)
            else:
                asked.set_exception(_KINDS[what](value))

    async def _reply(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        answer: tuple[str, int, int | None, Any]
        try:
            answer = ("answer", number, None, await self._answer(name, arguments))
        except Exception as exc:
            kind = next((kind for kind, each in enumerate(_KINDS) if isinstance(exc, each)), len(_KINDS) - 1)
            said = str(exc) if isinstance(exc, LightningError) else f"{type(exc).__name__}: {exc}"
            answer = ("answer", number, kind, said)
        if self._transport is not None:
            self._write(answer)

    def _write(self, message: tuple[Any, ...]) -> None:
        assert self._transport is not None
        packed = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._transport.write(len(packed).to_bytes(_LENGTH_BYTES) + packed)
