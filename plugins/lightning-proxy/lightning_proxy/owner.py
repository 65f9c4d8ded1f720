"""Whose call it is: by the URL, by the key of the attempt, or by a header."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from lightning_http.auth import Identity, Keys, Role, Unauthorized

from lightning_core.adapter.genai import JUDGE
from lightning_core.semconv import LightningResourceAttributes
from lightning_proxy.request import Refused

ROLLOUT_HEADER = "x-rollout-id"
ATTEMPT_HEADER = "x-attempt-id"

MAX_BOUND = 100_000
"""How many values are remembered that stand for an attempt; the newest."""

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
        header: A header whose value stands for an attempt: `rollout_id/attempt_id`, or what `bind` was told.
    """

    def __init__(self, keys: Keys, *, header: str | None = None) -> None:
        self._keys = keys
        self._header = header.lower() if header else None
        self._bound: OrderedDict[str, Owner] = OrderedDict()

    def bind(self, value: str, owner: Owner) -> None:
        """Let a value of the header, or the trace id of a `traceparent`, stand for an attempt.

        The newest 100,000 are remembered.
        """
        self._bound[value] = owner
        self._bound.move_to_end(value)
        if len(self._bound) > MAX_BOUND:
            self._bound.popitem(last=False)

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Say who calls, by the key that comes in any of the headers in which clients send keys.

        Where several come the first good one counts: clients fill the others with whatever their environment has.

        Raises:
            Refused: When a key is needed, and none is good.
        """
        others = (headers.get(name) for name in ("x-api-key", "api-key"))
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
                raise Refused(
                    403,
                    "wrong_attempt",
                    f"this key is for attempt {who.attempt_id} of rollout {who.rollout_id}; it cannot call for attempt "
                    f"{owner.attempt_id!r} of rollout {owner.rollout_id!r}, which {where} names",
                )
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
            if (owner := self._bound.get(value)) is not None:
                yield f"the header {self._header}", owner
            elif slash and rollout_id and attempt_id:
                yield f"the header {self._header}", Owner(None, rollout_id, attempt_id)
        if (trace := headers.get("traceparent")) and (owner := self._bound.get(trace_id(trace))) is not None:
            yield "the header traceparent", owner
        if "baggage" in headers:
            baggage = _baggage(headers["baggage"])
            rollout_id, attempt_id = baggage.get(_BAGGAGE_ROLLOUT), baggage.get(_BAGGAGE_ATTEMPT)
            if rollout_id and attempt_id:
                yield "the header baggage", Owner(None, rollout_id, attempt_id)


def trace_id(traceparent: str) -> str:
    """Return the trace id of W3C's header `traceparent`; empty where it is none."""
    parts = traceparent.strip().split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else ""


def parent_span(traceparent: str) -> tuple[str, str] | None:
    """Return the trace id and the parent's span id of W3C's header `traceparent`; None where it is none."""
    parts = traceparent.strip().lower().split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None
    try:
        is_real = int(parts[1], 16) and int(parts[2], 16)
    except ValueError:
        return None
    return (parts[1], parts[2]) if is_real else None


def _baggage(header: str) -> dict[str, str]:
    """Read W3C's header `baggage`: https://www.w3.org/TR/baggage/."""
    found = {}
    for entry in header.split(","):
        name, equals, value = entry.partition(";")[0].partition("=")
        if equals:
            found[name.strip()] = unquote(value.strip())
    return found
