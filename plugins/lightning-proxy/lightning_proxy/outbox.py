"""From calls that ended to the store: numbered in the order in which they began, in batches, until it has them."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

from lightning_core.concurrency import Batcher
from lightning_core.errors import InvalidRequest, NotFound, StoreClosed, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.types import Span
from lightning_proxy.control import CallsLost
from lightning_proxy.owner import Owner
from lightning_proxy.request import Refused

logger = logging.getLogger(__name__)

LINGER_SECONDS = 0.01
"""How long a span may wait for others that go with it."""

_MAX_BATCH = 64
_BATCH_BYTES = 8 * 1024 * 1024
"""About; a larger span goes alone. The bodies that a store takes over HTTP are at most 64 MiB."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_MAX_LOST = 20_000


@dataclass(eq=False, slots=True)
class Ticket:
    """A call of an attempt, from its beginning until the store has its span."""

    owner: Owner
    abort: Callable[[str], None]
    """Cuts the call off, with the reason."""
    number: "asyncio.Future[int]"
    """Its sequence id; 0 where the store could not be asked when it began."""
    span: Span | None = None
    size: int = 0


@dataclass(eq=False, slots=True)
class _Attempt:
    """What an attempt still waits for."""

    calling: set[Ticket] = field(default_factory=set)
    unsent: set[Ticket] = field(default_factory=set)
    waiting: "list[tuple[set[Ticket], asyncio.Future[None]]]" = field(default_factory=list)
    """Who waits, and for which of them."""

    def is_done(self) -> bool:
        return not self.calling and not self.unsent


class Outbox:
    """Brings spans to the store, and knows what of an attempt is not there yet.

    While the store is out of reach spans are kept, and sent when it is back. A span is known by its id, so one that is
    sent twice is there once. When too much has piled up, no further call begins, so that memory is bounded.

    Args:
        view: Gives the store of a run.
        clock: How long pauses last.
        max_spans: How many spans may pile up.
        max_bytes: How many bytes, about.
    """

    def __init__(
        self,
        view: Callable[[str | None], LightningStore],
        clock: Clock,
        *,
        max_spans: int = 20_000,
        max_bytes: int = 512 * 1024 * 1024,
    ) -> None:
        self._view = view
        self._clock = clock
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._attempts: dict[Owner, _Attempt] = {}
        self._numbers = Batcher(self._number)
        self._ready: list[Ticket] = []
        self.unsent = 0
        """How many spans the store does not have yet."""
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._is_down = False
        self.lost = 0
        """Spans that were not stored: their rollout was deleted, the store was closed, or it cannot keep them."""
        self._lost_of: OrderedDict[Owner, str] = OrderedDict()
        """Attempts that are there and have lost spans, and why."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, or one is recorded that the store does not have yet."""
        return any(each.calling or each.unsent for each in self._attempts.values())

    def require_room(self) -> None:
        """Check that another call's span can be kept.

        Raises:
            Refused: When too much has piled up.
        """
        if self.unsent >= self._max_spans or self._unsent_bytes >= self._max_bytes:
            raise Refused(
                503,
                "store_behind",
                f"{self.unsent} recorded calls wait for the store, which is out of reach; try again in a moment",
                retry_after=2.0,
            )

    def begin(self, owner: Owner, abort: Callable[[str], None]) -> Ticket:
        """Record a call that begins, and ask for its number."""
        ticket = Ticket(owner, abort, self._numbers.submit(owner))
        attempt = self._attempts.get(owner)
        if attempt is None:
            attempt = self._attempts[owner] = _Attempt()
        attempt.calling.add(ticket)
        return ticket

    def end(self, ticket: Ticket, span: Span | None, size: int = 0) -> None:
        """Take the span of a call that has ended; None for a call that never came to be one."""
        attempt = self._attempts[ticket.owner]
        attempt.calling.discard(ticket)
        if span is None:
            self._settle(ticket, attempt)
            return
        ticket.span, ticket.size = span, size
        attempt.unsent.add(ticket)
        self.unsent += 1
        self._unsent_bytes += size
        self._ready.append(ticket)
        if self._sending is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0 if attempt.waiting else LINGER_SECONDS, self._send)
        elif attempt.waiting:
            self._send()

    async def flush(
        self, owner: Owner, *, grace_seconds: float, timeout_seconds: float | None, end: bool = True
    ) -> None:
        """Return when the store has the spans of all calls of an attempt.

        Args:
            owner: The attempt.
            grace_seconds: How long to wait for the end of calls that are under way.
            timeout_seconds: How long to wait for the store; None for no limit.
            end: Whether the attempt has ended: what is under way by then is cut off. Otherwise it goes on.

        Raises:
            StoreUnavailable: When the store did not take them in time. They stay here, and go to it when it is back.
            CallsLost: When the store did not take one of them, and never will.
        """
        attempt = self._attempts.get(owner)
        if attempt is not None:
            await self._flush(owner, attempt, grace_seconds, timeout_seconds, end=end)
        if owner in self._lost_of:
            raise CallsLost(f"model calls of attempt {owner.attempt_id!r} could not be stored: {self._lost_of[owner]}")

    async def _flush(
        self, owner: Owner, attempt: _Attempt, grace_seconds: float, timeout_seconds: float | None, *, end: bool
    ) -> None:
        if attempt.calling:
            await self._clock.wait(self._until_stored(attempt, attempt.calling | attempt.unsent), grace_seconds)
            for ticket in tuple(attempt.calling if end else ()):
                ticket.abort("the attempt has ended")
        tickets = attempt.calling | attempt.unsent if end else set(attempt.unsent)
        if not tickets:
            return
        done = self._until_stored(attempt, tickets)
        self._send()
        if not await self._clock.wait(done, timeout_seconds):
            raise StoreUnavailable(
                f"the store did not take {len(attempt.unsent)} model calls of attempt {owner.attempt_id!r} within "
                f"{timeout_seconds:g} s"
            )

    async def aclose(self, seconds: float) -> None:
        """Send what there is, for so many seconds at most; what is left then is logged as lost."""
        waiting = [self._until_stored(each, each.calling | each.unsent) for each in self._attempts.values()]
        if self._ready:
            self._send()
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)
        if waiting:
            done = asyncio.gather(*waiting)
            await self._clock.wait(done, seconds)
            done.cancel()
            await asyncio.gather(done, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait((self._sending,))
        await self._numbers.cancel()
        if self.unsent:
            self.lost += self.unsent
            logger.error(
                "lightning.proxy_spans_lost spans=%d; the store was out of reach when the proxy stopped",
                self.unsent,
            )

    # Numbers

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

    # Spans

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._ready:
            self._sending = asyncio.create_task(self._send_all(), name="spans of model calls")

    async def _send_all(self) -> None:
        try:
            while self._ready:
                count = self._next_batch()
                batch, self._ready = self._ready[:count], self._ready[count:]
                try:
                    await self._send_batch(batch)
                except BaseException:
                    self._ready = batch + self._ready
                    raise
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
        for ticket in batch:
            number = await ticket.number
            if ticket.span is not None:
                ticket.span.sequence_id = number
        for run_id in dict.fromkeys(ticket.owner.run_id for ticket in batch):
            spans = [t.span for t in batch if t.owner.run_id == run_id and t.span is not None]
            spans.sort(key=lambda span: span.start_time or 0.0)
            await self._store(run_id, spans)
        for ticket in batch:
            attempt = self._attempts[ticket.owner]
            attempt.unsent.discard(ticket)
            self.unsent -= 1
            self._unsent_bytes -= ticket.size
            self._settle(ticket, attempt)

    async def _store(self, run_id: str | None, spans: list[Span]) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._view(run_id).add_many_spans(spans)
            except (NotFound, InvalidRequest) as exc:
                await self._store_apart(run_id, spans, exc)
            except StoreClosed as exc:
                self._lose(run_id, spans, exc)
            except Exception as exc:
                if not self._is_down:
                    self._is_down = True
                    logger.warning("lightning.proxy_store_out_of_reach reason=%s; spans are kept until it is back", exc)
                await self._rest(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            if self._is_down:
                self._is_down = False
                logger.info("lightning.proxy_store_back")
            return

    async def _store_apart(self, run_id: str | None, spans: list[Span], error: Exception) -> None:
        """Store what can be: a rollout that was deleted, or a span that cannot be kept, takes no other with it."""
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        groups = list(by_attempt.values())
        if len(groups) == 1 and isinstance(error, InvalidRequest):
            groups = [[span] for span in spans]
        if len(groups) == 1:
            self._lose(run_id, spans, error)
            return
        for group in groups:
            await self._store(run_id, group)

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

    async def _rest(self, seconds: float) -> None:
        self._hurry = asyncio.get_running_loop().create_future()
        await self._clock.wait(self._hurry, seconds)

    # Waiters

    def _until_stored(self, attempt: _Attempt, tickets: set[Ticket]) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tickets:
            attempt.waiting.append((tickets, future))
        else:
            future.set_result(None)
        return future

    def _settle(self, ticket: Ticket, attempt: _Attempt) -> None:
        for tickets, future in attempt.waiting:
            tickets.discard(ticket)
            if not tickets and not future.done():
                future.set_result(None)
        attempt.waiting = [each for each in attempt.waiting if each[0]]
        if attempt.is_done():
            self._attempts.pop(ticket.owner, None)
