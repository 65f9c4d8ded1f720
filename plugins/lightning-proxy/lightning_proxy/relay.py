"""A stream on its way from the backend to the agent, and what is recorded of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from lightning_proxy.answer import Answer
from lightning_proxy.backend import BackendBroke
from lightning_proxy.dialects import Added, Dialect
from lightning_proxy.dispatch import Sent
from lightning_proxy.exchange import Exchange, Headers
from lightning_proxy.sse import EventReader, NoEventStream, ServerEvent


class EarlyEnd(BackendBroke):
    """A stream ended as if nothing were wrong, before its answer did."""


class StreamRelay:
    """Hands a stream on, piece by piece, and puts its answer together.

    A piece goes out as it came where nothing is to be taken out of it. No more is read from the backend than the agent
    takes, but for what the connections buffer.

    Args:
        exchange: Where it goes.
        dialect: What it is made of.
        added: What is to be taken out.
        choices: How many answers were asked for; 0 where the API's last event alone ends a stream.
        on_begin: Is given the answer when its id is known, before the agent gets that.
    """

    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect,
        added: Added,
        choices: int,
        *,
        on_begin: Callable[[Answer], Awaitable[None]] | None = None,
    ) -> None:
        self.first_chunk: float | None = None
        """When the first piece went out, by `time.perf_counter`."""
        self.size = 0
        self._exchange = exchange
        self._dialect = dialect
        self._added = added
        self._choices = choices
        self._on_begin = on_begin
        self._reader = EventReader()
        self._assembler = dialect.assembler()
        self._is_pushing = False

    async def run(self, sent: Sent, headers: Headers) -> None:
        """Hand the stream on until it ends.

        Raises:
            BackendBroke: When it breaks off.
            BackendTimeout: When it does not go on.
            ClientGone: When the agent does not take it.
        """
        async for piece in sent.answer.pieces():
            self.size += len(piece)
            if self._added:
                events = self._events(piece, sent)
                # The first one goes out before the others are read, however many came with it.
                parts = [events[:1], events[1:]] if self.first_chunk is None else [events]
                for part in parts:
                    await self._push(self._read(part), sent, headers)
            elif self._on_begin is not None:
                self._read(self._events(piece, sent))
                if self._assembler.answer.id is not None:
                    on_begin, self._on_begin = self._on_begin, None
                    await on_begin(self._assembler.answer)
                await self._push(piece, sent, headers)
            else:
                await self._push(piece, sent, headers)
                self._read(self._events(piece, sent))
        last = self._read(self._reader.finish())
        is_ended = self._assembler.is_complete  # by its last event; where there is none, each choice says its own end
        self._assembler.finish()
        if not is_ended and not self._has_all() and self._assembler.answer.failure is None:
            raise EarlyEnd(f"{sent.replica.backend.address} ended its stream before the answer was complete")
        if self._added:
            await self._push(last, sent, headers)
        if self.first_chunk is None:
            await self._exchange.begin(sent.answer.status, headers)
        await self._exchange.end()

    def finish(self) -> Answer:
        """Return the answer, as far as it came."""
        return self._assembler.finish()

    def was_taken(self) -> bool:
        """Whether the agent took the whole answer. To be called after `finish`.

        Many agents close a stream at the finish reason, before what the backend still says of the usage.
        """
        return not self._is_pushing and self._assembler.answer.failure is None and self._has_all()

    def _has_all(self) -> bool:
        """Whether all answers that were asked for are complete. To be called after `finish`."""
        return self._assembler.is_complete and len(self._assembler.answer.choices) >= self._choices

    async def _push(self, handed: bytes, sent: Sent, headers: Headers) -> None:
        if not handed:
            return
        self._is_pushing = True  # and stays so where the agent does not take it
        if self.first_chunk is not None:
            await self._exchange.push(handed)
        else:
            await self._exchange.begin(sent.answer.status, headers)
            await self._exchange.push(handed)
            await asyncio.sleep(0)  # the event loop writes to sockets when it gets its turn
            self.first_chunk = time.perf_counter()
        self._is_pushing = False

    def _events(self, piece: bytes, sent: Sent) -> list[ServerEvent]:
        try:
            return self._reader.feed(piece)
        except NoEventStream as exc:
            raise BackendBroke(f"{sent.replica.backend.address} sent no event stream: {exc}") from exc

    def _read(self, events: list[ServerEvent]) -> bytes:
        """Take note of events, and return what is left of them for the agent."""
        left = []
        for event in events:
            fields = event.fields()
            self._assembler.feed(event, fields)
            if fields is None:
                left.append(event.raw)
            elif self._dialect.strip_event(fields, self._added):
                left.append(event.with_fields(fields))
        return b"".join(left)
