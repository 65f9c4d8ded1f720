"""From calls that ended to the store: numbered in the order in which they began, in batches, until it has them."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

from lightning_core.concurrency import Batcher
from lightning_core.errors import InvalidRequest, NotFound, ProxyError, StoreClosed, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.types import Span
from lightning_proxy.owner import Owner
from lightning_proxy.request import unavailable

logger = logging.getLogger(__name__)

LINGER_SECONDS = 0.01
"""How long a span may wait for others that go with it."""

FLUSH_GRACE_SECONDS = 1.0
"""How long calls may go on that are under way when their attempt ends."""
FLUSH_SECONDS = 30.0
"""How long the end of an attempt waits for the store."""
MAX_UNSENT_SPANS = 20_000
MAX_UNSENT_BYTES = 512 * 1024 * 1024
"""Of the requests and answers that unsent spans are of."""

_MAX_BATCH = 64
_BATCH_BYTES = 8 * 1024 * 1024
"""About; a larger span goes alone. The bodies that a store takes over HTTP are at most 64 MiB."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
"""Between tries to reach the store. Less than the time that `aclose` has, so that the last one comes in it."""
_MAX_LOST = 20_000


class CallsLost(ProxyError):
    """Calls of an attempt are gone: the store cannot keep them."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A call of an attempt, from its beginning until the store has its span."""

    owner: Owner
    abort: Callable[[str], None]
    """Cuts the call off, with the reason."""
    number: "asyncio.Future[int]"
    """Its sequence id; 0 where the store could not be asked when it began."""
    settled: "asyncio.Future[None]"
    """Done when the store has its span, or never will."""
    span: Span | None = None
    """None while the call is under way."""
    size: int = 0


class Outbox:
    """Brings spans to the store, and knows what of an attempt is not there yet.

    While the store is out of reach spans are kept, and sent when it is back. A span is known by its id, so one that is
    sent twice is there once. When too much has piled up, no further call begins, so that memory is bounded.

    Args:
        view: Gives the store of a run.
        clock: How long pauses last.
    """

    def __init__(self, view: Callable[[str | None], LightningStore], clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._tickets: dict[Owner, set[Ticket]] = {}
        self._numbers = Batcher(self._number)
        self._ready: list[Ticket] = []
        self.unsent = 0
        """How many spans the store does not have yet."""
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_down = False
        self.lost = 0
        """Spans that were not stored: their rollout was deleted, the store was closed, or it cannot keep them."""
        self._lost_of: OrderedDict[Owner, str] = OrderedDict()
        """Attempts that are there and have lost spans, and why."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, or one is recorded that the store does not have yet."""
        return bool(self._tickets)

    def require_room(self) -> None:
        """Check that another call's span can be kept.

        Raises:
            Refused: When too much has piled up.
        """
        if self.unsent >= MAX_UNSENT_SPANS or self._unsent_bytes >= MAX_UNSENT_BYTES:
            message = f"{self.unsent} recorded calls wait for the store, which is out of reach; try again in a moment"
            raise unavailable("store_behind", message, retry_after=2.0)

    def begin(self, owner: Owner, abort: Callable[[str], None]) -> Ticket:
        """Record a call that begins, and ask for its number."""
        settled = asyncio.get_running_loop().create_future()
        ticket = Ticket(owner, abort, self._numbers.submit(owner), settled)
        self._tickets.setdefault(owner, set()).add(ticket)
        return ticket

    def end(self, ticket: Ticket, span: Span | None, size: int = 0) -> None:
        """Take the span of a call that has ended; None for a call that is not recorded."""
        if span is None:
            self._settle(ticket)
            return
        ticket.span, ticket.size = span, size
        self.unsent += 1
        self._unsent_bytes += size
        self._ready.append(ticket)
        if self._sending is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._send)

    async def flush(self, owner: Owner, *, end: bool = True) -> None:
        """Return when the store has the spans of all calls of an attempt.

        Args:
            owner: The attempt.
            end: Whether the attempt has ended: what is still under way after a moment is cut off. Otherwise it goes on.

        Raises:
            StoreUnavailable: When the store did not take them in time. They stay here, and go to it when it is back.
            CallsLost: When the store did not take one of them, and never will.
        """
        tickets = self._tickets.get(owner, set())
        self._send()
        if any(ticket.span is None for ticket in tickets):
            await self._clock.wait(_all_settled(tickets), FLUSH_GRACE_SECONDS)
            for ticket in [ticket for ticket in tickets if end and ticket.span is None]:
                ticket.abort("the attempt has ended")
        left = [ticket for ticket in tickets if end or ticket.span is not None]
        if left and not await self._clock.wait(_all_settled(left), FLUSH_SECONDS):
            calls = f"{len(tickets)} model calls of attempt {owner.attempt_id!r}"
            raise StoreUnavailable(f"the store did not take {calls} within {FLUSH_SECONDS:g} s")
        if owner in self._lost_of:
            raise CallsLost(f"model calls of attempt {owner.attempt_id!r} could not be stored: {self._lost_of[owner]}")

    async def aclose(self, seconds: float) -> None:
        """Send what there is, for so many seconds at most; what is left then is logged as lost."""
        self._send()
        if self._tickets:
            await self._clock.wait(_all_settled(set().union(*self._tickets.values())), seconds)
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait((self._sending,))
        await self._numbers.cancel()
        if self.unsent:
            self.lost += self.unsent
            reason = "the store was out of reach when the proxy stopped"
            logger.error("lightning.proxy_spans_lost spans=%d; %s", self.unsent, reason)

    async def _number(self, owners: list[Owner]) -> list[int]:
        numbers: dict[str | None, Iterator[int]] = {}
        for run_id in dict.fromkeys(owner.run_id for owner in owners):
            pairs = [(owner.rollout_id, owner.attempt_id) for owner in owners if owner.run_id == run_id]
            try:
                numbers[run_id] = iter(await self._view(run_id).get_many_span_sequence_ids(pairs))
            except Exception as exc:
                # The store numbers them when it gets them, which keeps the order of what is sent together.
                logger.warning("lightning.calls_not_numbered calls=%d reason=%s", len(pairs), exc)
                numbers[run_id] = repeat(0)
        return [next(numbers[owner.run_id]) for owner in owners]

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._ready:
            self._sending = asyncio.create_task(self._send_all(), name="spans of model calls")

    async def _send_all(self) -> None:
        try:
            while self._ready:
                batch = self._ready[: self._next_batch()]
                await self._send_batch(batch)
                del self._ready[: len(batch)]
        finally:
            self._sending = None

    def _next_batch(self) -> int:
        """Return how many of the spans that are ready go together."""
        count = size = 0
        for ticket in self._ready[:_MAX_BATCH]:
            size += ticket.size
            if count and size > _BATCH_BYTES:
                break
            count += 1
        return count

    async def _send_batch(self, batch: list[Ticket]) -> None:
        by_run: dict[str | None, list[Span]] = {}
        for ticket in batch:
            assert ticket.span is not None
            ticket.span.sequence_id = await ticket.number
            by_run.setdefault(ticket.owner.run_id, []).append(ticket.span)
        for run_id, spans in by_run.items():
            await self._store(run_id, sorted(spans, key=lambda span: span.start_time or 0.0))
        for ticket in batch:
            self.unsent -= 1
            self._unsent_bytes -= ticket.size
            self._settle(ticket)

    async def _store(self, run_id: str | None, spans: list[Span]) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._view(run_id).add_many_spans(spans)
            except (NotFound, InvalidRequest) as exc:
                if len(spans) == 1:
                    self._lose(run_id, spans, exc)
                else:  # a rollout that was deleted, or a span that cannot be kept, takes no other with it
                    for span in spans:
                        await self._store(run_id, [span])
            except StoreClosed as exc:
                self._lose(run_id, spans, exc)
            except Exception as exc:
                if not self._is_down:
                    self._is_down = True
                    logger.warning("lightning.proxy_store_out_of_reach reason=%s; spans are kept until it is back", exc)
                await self._clock.wait(asyncio.get_running_loop().create_future(), pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            if self._is_down:
                self._is_down = False
                logger.info("lightning.proxy_store_back")
            return

    def _lose(self, run_id: str | None, spans: list[Span], error: Exception) -> None:
        self.lost += len(spans)
        if not isinstance(error, NotFound):  # else the attempt is not asked for any more
            for span in spans:
                self._lost_of[Owner(run_id, span.rollout_id, span.attempt_id)] = str(error)
            while len(self._lost_of) > _MAX_LOST:
                self._lost_of.popitem(last=False)
        logger.error(
            "lightning.proxy_spans_refused spans=%d rollout_id=%s reason=%s", len(spans), spans[0].rollout_id, error
        )

    def _settle(self, ticket: Ticket) -> None:
        ticket.settled.set_result(None)
        tickets = self._tickets[ticket.owner]
        tickets.discard(ticket)
        if not tickets:
            del self._tickets[ticket.owner]


def _all_settled(tickets: Iterable[Ticket]) -> "asyncio.Future[list[None]]":
    return asyncio.gather(*(ticket.settled for ticket in tickets))
