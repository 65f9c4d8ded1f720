"""Whose call it is (by the URL, by the key of the attempt, or by a header), and whether that attempt may call."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from lightning_http.auth import Identity, Keys, Role, Unauthorized
from opentelemetry.baggage import get_all
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import format_span_id, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lightning_core.adapter.genai import JUDGE
from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.errors import LightningError, NotFound, StoreUnavailable
from lightning_core.lifecycle import ENDED
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.types import AttemptedRollout, Rollout
from lightning_proxy.request import Refused, unavailable

logger = logging.getLogger(__name__)

ROLLOUT_HEADER = "x-rollout-id"
ATTEMPT_HEADER = "x-attempt-id"

_TRACES = TraceContextTextMapPropagator()
_BAGGAGE = W3CBaggagePropagator()
_BAGGAGE_ROLLOUT = LightningResourceAttributes.ROLLOUT_ID.value
_BAGGAGE_ATTEMPT = LightningResourceAttributes.ATTEMPT_ID.value


class Owner(NamedTuple):
    """The attempt that a call belongs to."""

    run_id: str | None
    """None for the proxy's own run."""
    rollout_id: str
    attempt_id: str


class Addressed(NamedTuple):
    """What a URL's path says."""

    rollout_id: str | None
    attempt_id: str | None
    path: str
    """What follows, beginning with a slash."""
    purpose: str | None = None
    """What a call is for, where it is none of the agent's own."""


def read_path(path: str) -> Addressed:
    """Split `/rollout/{rollout_id}/attempt/{attempt_id}`, and `/judge` behind it, off a path that is still quoted."""
    parts = path.split("/", 5)
    if len(parts) >= 5 and parts[1] == "rollout" and parts[3] == "attempt" and parts[2] and parts[4]:
        rest = parts[5] if len(parts) > 5 else ""
        purpose, slash, below = rest.partition("/")
        if purpose == JUDGE and slash:
            return Addressed(unquote(parts[2]), unquote(parts[4]), f"/{below}", JUDGE)
        return Addressed(unquote(parts[2]), unquote(parts[4]), f"/{rest}")
    return Addressed(None, None, path)


class Attribution:
    """Finds out whose call it is, and whether the caller may say so.

    Args:
        keys: Who may do what.
        header: A header whose value stands for an attempt: `rollout_id/attempt_id`.
    """

    def __init__(self, keys: Keys, *, header: str | None = None) -> None:
        self._keys = keys
        self._header = header.lower() if header else None

    def identify(self, headers: Mapping[str, str], query_key: str | None = None) -> Identity:
        """Say who calls, by the key that comes in any of the headers in which clients send keys, or in the URL.

        Where several come the first good one counts: clients fill the others with whatever their environment has.

        Raises:
            Refused: When a key is needed, and none is good.
        """
        others = (*(headers.get(name) for name in ("x-api-key", "api-key", "x-goog-api-key")), query_key)
        given: list[str | None] = [f"Bearer {other}" for other in others if other]
        if authorization := headers.get("authorization"):
            given.append(authorization)
        message = "the proxy wants a key: that of the attempt, or its own; send 'Authorization: Bearer KEY'"
        if given:
            message = "this is not a key of the proxy, nor of an attempt; see where the agent gets its api_key from"
        for each in given or [None]:
            try:
                return self._keys.identify(each, time.time())
            except Unauthorized as exc:
                if "expired" in str(exc):
                    message = str(exc)
        raise Refused(401, "invalid_api_key", message)

    def owner(self, addressed: Addressed, headers: Mapping[str, str], who: Identity) -> Owner | None:
        """Return whose call it is; None where nothing says so.

        Without a key, and with one that opens every attempt, the first that says it is believed. With an attempt's key
        it is that attempt's, and nothing may say otherwise.

        Raises:
            Refused: When the caller's key is another attempt's than the URL or a header says.
        """
        if who.role > Role.ATTEMPT or who.rollout_id is None or who.attempt_id is None:
            return next((owner for _, owner in self._claims(addressed, headers)), None)
        for where, owner in self._claims(addressed, headers):
            if not who.owns(owner.rollout_id, owner.attempt_id):
                mine = f"attempt {who.attempt_id} of rollout {who.rollout_id}"
                other = f"attempt {owner.attempt_id!r} of rollout {owner.rollout_id!r}"
                message = f"this key is for {mine}; it cannot call for {other}, which {where} names"
                raise Refused(403, "wrong_attempt", message)
        return Owner(who.run_id, who.rollout_id, who.attempt_id)

    def _claims(self, addressed: Addressed, headers: Mapping[str, str]) -> Iterator[tuple[str, Owner]]:
        """Yield what says whose call it is, and whose: what is meant for this call alone before what is passed on."""
        if addressed.rollout_id is not None and addressed.attempt_id is not None:
            yield "the URL", Owner(None, addressed.rollout_id, addressed.attempt_id)
        rollout_id, attempt_id = headers.get(ROLLOUT_HEADER), headers.get(ATTEMPT_HEADER)
        if rollout_id and attempt_id:
            yield f"the header {ROLLOUT_HEADER}", Owner(None, rollout_id, attempt_id)
        if self._header is not None and (value := headers.get(self._header)):
            rollout_id, slash, attempt_id = value.partition("/")
            if slash and rollout_id and attempt_id:
                yield f"the header {self._header}", Owner(None, rollout_id, attempt_id)
        if "baggage" in headers:
            baggage = get_all(_BAGGAGE.extract(headers, Context()))
            if baggage.get(_BAGGAGE_ROLLOUT) and baggage.get(_BAGGAGE_ATTEMPT):
                named = Owner(None, str(baggage[_BAGGAGE_ROLLOUT]), str(baggage[_BAGGAGE_ATTEMPT]))
                yield "the header baggage", named


def parent_span(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the trace id and the parent's span id of W3C's header `traceparent`; None where it is none."""
    parent = get_current_span(_TRACES.extract(headers, Context())).get_span_context()
    return (format_trace_id(parent.trace_id), format_span_id(parent.span_id)) if parent.is_valid else None


# Which attempts are live

FRESH_SECONDS = 1.0
"""How long it is believed what the store said, and that it is out of reach."""
SHORT_SECONDS = 0.2
"""How long the calls of an attempt that was live wait for what the store says now."""

_STORE_SECONDS = 5.0
_MAX_KNOWN = 20_000
_LIVE = frozenset({"preparing", "running", "unresponsive"})


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the store said of an attempt."""

    at: float
    problem: str | None
    """Why it may not call; None for one that is live."""
    is_of_agent: bool = True


_ENDED = _Verdict(math.inf, "has ended")


class LiveAttempts:
    """Knows from the store which attempts are live.

    Args:
        view: Gives the store of a run.
        clock: Where the time comes from.
    """

    def __init__(self, view: Callable[[str | None], LightningStore], clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._known: OrderedDict[Owner, _Verdict] = OrderedDict()
        self._asking: dict[Owner, asyncio.Task[None]] = {}
        self._away_until = -math.inf
        """Until when the store counts as out of reach."""

    def end(self, owner: Owner) -> None:
        """Record that an attempt has ended: no call of it is let through from now on."""
        self._remember(owner, _ENDED)

    async def aclose(self) -> None:
        """Ask nothing more."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_of_agent(self, owner: Owner) -> bool:
        """Whether an attempt is an agent's, as far as is known, and does not keep an algorithm's own calls."""
        known = self._known.get(owner)
        return known is None or known.is_of_agent

    def require_not_ended(self, owner: Owner) -> None:
        """Check that an attempt has not ended since `require`. A call that begins right after it is not too late.

        Raises:
            Refused: When it has.
        """
        if self._known.get(owner) is _ENDED:
            raise _refused(owner, "has ended")

    async def require(self, owner: Owner, *, has_key: bool) -> None:
        """Check that an attempt is live.

        While the store is out of reach, what it said before is believed, and an attempt of which it said nothing is
        believed to be live where the caller has its key.

        Raises:
            Refused: When it is not, or that cannot be known.
        """
        known = self._known.get(owner)
        if known is None or self._clock.now() - known.at >= FRESH_SECONDS:
            was_live = known is not None and known.problem is None
            await self._ask(owner, SHORT_SECONDS if was_live else _STORE_SECONDS)
            known = self._known.get(owner)
        if known is None:
            if not has_key:
                message = f"whether attempt {owner.attempt_id!r} is live cannot be told: the store is out of reach"
                raise unavailable("store_unavailable", message)
        elif known.problem is not None:
            raise _refused(owner, known.problem)

    async def _ask(self, owner: Owner, seconds: float) -> None:
        """Ask the store, once for all calls of an attempt, and wait for its answer for so long at most."""
        if self._clock.now() < self._away_until:
            return
        task = self._asking.get(owner)
        if task is None:
            task = self._asking[owner] = asyncio.create_task(self._learn(owner), name="whether an attempt is live")
        if await self._clock.wait(task, seconds):
            task.result()

    async def _learn(self, owner: Owner) -> None:
        asking = asyncio.ensure_future(self._view(owner.run_id).get_rollout_by_id(owner.rollout_id))
        try:
            if not await self._clock.wait(asking, _STORE_SECONDS):
                raise StoreUnavailable(f"the store did not answer within {_STORE_SECONDS:g} s")
            rollout = asking.result()
            is_of_agent = rollout is None or not is_of_algorithm(rollout)
            self._remember(owner, _Verdict(self._clock.now(), _problem(rollout, owner), is_of_agent))
        except NotFound:
            self._remember(owner, _Verdict(self._clock.now(), _problem(None, owner)))
        except LightningError as exc:
            if isinstance(exc, StoreUnavailable):
                self._away_until = self._clock.now() + FRESH_SECONDS
            logger.warning("lightning.attempt_not_checked attempt_id=%s", owner.attempt_id, exc_info=exc)
        finally:
            asking.cancel()
            del self._asking[owner]

    def _remember(self, owner: Owner, verdict: _Verdict) -> None:
        if self._known.get(owner) is _ENDED:  # which the store may not know yet
            return
        self._known[owner] = verdict
        self._known.move_to_end(owner)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


def _problem(rollout: Rollout | None, owner: Owner) -> str | None:
    if rollout is None:
        return "is unknown: the store has no such rollout"
    if not isinstance(rollout, AttemptedRollout) or rollout.attempt.attempt_id != owner.attempt_id:
        return "is not the newest attempt of its rollout"
    if rollout.status in ENDED:
        return f"has ended: its rollout is {rollout.status!r}"
    if rollout.attempt.status not in _LIVE or "fault" in (rollout.attempt.metadata or {}):
        return f"has ended: it is {rollout.attempt.status!r}"
    return None


def _refused(owner: Owner, problem: str) -> Refused:
    who = f"attempt {owner.attempt_id!r} of rollout {owner.rollout_id!r}"
    return Refused(403, "attempt_not_live", f"{who} {problem}; only a live attempt may call a model")
