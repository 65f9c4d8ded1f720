"""Sends a call to a backend: to which replica, with which body, and whether it is tried again."""

import asyncio
import logging
import math
import random
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightning_core.runner.clients import asked_seconds
from lightning_core.secrets import hide_in_text
from lightning_core.store.clock import Clock
from lightning_proxy.apis import DIALECTS, ConvertibleDialect, Dialect
from lightning_proxy.apis.chat import CHAT
from lightning_proxy.backend import (
    BackendAnswer,
    BackendBroke,
    BackendRequest,
    BackendTimeout,
    BackendUnavailable,
    WholeAnswer,
)
from lightning_proxy.call import Call
from lightning_proxy.jsons import dump
from lightning_proxy.limiter import Limiter
from lightning_proxy.model_list import Models
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.request import Refused

logger = logging.getLogger(__name__)

_RETRIED = frozenset({429, 502, 503, 504})
_FALL_BACK = frozenset({"backend_unavailable", "backend_timeout", "backend_broke"})
_LONGEST_PAUSE_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 2.0
"""A backend that asks for a longer wait is tried again by the client, which knows how long it can wait."""
_BLIP_SECONDS = 2.0
"""A backend that has been out of reach for longer is tried once by each call."""
_RETRIES_TAKEN = "x-stainless-retry-count"
_CLIENT_TIMEOUTS = ("x-stainless-timeout", "x-stainless-read-timeout")
"""What the clients of OpenAI and Anthropic say of themselves: how often they tried already, and how long they wait."""
_PASSED_ON = frozenset(
    {
        *("content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"),
        *(_RETRIES_TAKEN, *_CLIENT_TIMEOUTS),
    }
)
_PASSED_ON_CONVERTED = frozenset({"content-type", "accept", "idempotency-key"})


@dataclass(eq=False)
class _TryAgain(Exception):
    """A try that failed before anything was answered."""

    refused: Refused
    is_elsewhere: bool
    """Whether a replica is there that was not tried yet, and can be at once."""
    is_last: bool
    """Whether another try at the same one would not help."""
    asked_seconds: float | None = None
    """The wait that the backend asks for; None for the usual pause."""
    answer: WholeAnswer | None = None
    """What the backend said."""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A call as a replica gets it, but for what the proxy adds."""

    path: str
    query: str
    fields: dict[str, Any] | None
    body: bytes
    dialect: Dialect | None
    conversion: ConvertibleDialect | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """A backend's answer that has begun."""

    answer: BackendAnswer
    replica: Replica
    dialect: Dialect | None
    """The API that it speaks; None for a call that passes through as it is."""
    conversion: ConvertibleDialect | None = None
    """By which the call was made one of that API; None where it came as one."""
    added: dict[str, Any] = field(default_factory=dict)
    """The fields of the request that the agent did not send."""


class Sender:
    """Sends calls.

    Args:
        replicas: Where to.
        models: Which model is asked when one gives no answer, and the parameters of each.
        limiter: Takes a call out of flight while it waits for another try.
        clock: The time.
        retries: How often a call is tried again.
        first_pause_seconds: The pause before the first time; later ones are longer.
    """

    def __init__(
        self,
        replicas: Replicas,
        models: Models,
        limiter: Limiter,
        clock: Clock,
        *,
        retries: int,
        first_pause_seconds: float,
    ) -> None:
        self.weight_version: str | None = None
        """The version of the weights that calls are sent to."""
        self._replicas = replicas
        self._models = models
        self._limiter = limiter
        self._clock = clock
        self._retries = retries
        self._first_pause_seconds = first_pause_seconds
        self._dropped: set[str] = set()
        """The tools that a warning told of."""

    async def send(self, call: Call) -> Response:
        """Send a call until a model answers it, or there is none left to ask.

        A client that tries again by itself, and a backend that asks for a long wait, leave no other try to the proxy:
        else each would multiply those of the other. Another replica is tried at once all the same.

        Returns:
            The answer, whatever its status. The caller calls `end` of the replicas when it is over, and before that
            `record_success` or `failed`.

        Raises:
            Refused: When there is no answer.
        """
        may_fall_back = call.dialect is not None and call.pinned is None
        fallbacks = iter(self._models.fallbacks(call.target) if may_fall_back else ())
        given = call.fields
        again: float | None = None
        """After how many seconds a model may answer that was asked before."""
        while True:
            self._set_params(call, given)
            try:
                response = await self._send_to_target(call)
                if not _is_no_answer(response.answer.status) or (following := next(fallbacks, None)) is None:
                    return response
                reason = f"it answered {response.answer.status}"
                again = again or 1.0
                self._replicas.end(response.replica)
                await response.answer.aclose()
            except Refused as exc:
                if exc.kind not in _FALL_BACK or (following := next(fallbacks, None)) is None:
                    exc.retry_after = exc.retry_after or again
                    raise
                reason, again = exc.message, again or exc.retry_after
                if call.is_sent:
                    _count_abandoned(call)
            logger.info("lightning.model_falls_back from=%s to=%s reason=%s", call.target, following, reason)
            call.target, call.is_sent, call.fell_back = following, False, True
            await self._limiter.reacquire(call)

    def _set_params(self, call: Call, given: dict[str, Any] | None) -> None:
        if call.dialect is None or given is None:
            return
        fields = self._models.with_params(call.target, call.path, given)
        if fields is not call.fields:
            call.fields, call.body = fields, dump(fields)

    def _outgoing(self, call: Call, replica: Replica) -> _Outgoing:
        """Return a call as a replica is to get it.

        Raises:
            Refused: When the replica speaks chat alone, which cannot say what the agent asks.
        """
        conversion = call.dialect
        if (
            not isinstance(conversion, ConvertibleDialect)
            or not (replica.converts or conversion.is_always_converted)
            or call.fields is None
        ):
            return _Outgoing(call.path, call.request.query, call.fields, call.body, call.dialect)
        asked, call.dropped_tools = conversion.without_hosted_tools(call.fields)
        for kind in set(call.dropped_tools) - self._dropped:
            self._dropped.add(kind)
            logger.warning(
                "lightning.tool_dropped type=%s model=%s: the agent offers a tool that a provider runs, and this "
                "model's engine has none; calls go on without it, and their spans say so",
                kind,
                replica.model_name,
            )
        # Once more, for an effort that is Anthropic's default, and so is left out.
        fields = self._models.with_params(call.target, CHAT, conversion.to_chat(asked))
        return _Outgoing(CHAT, "", fields, dump(fields), DIALECTS[CHAT], conversion)

    async def _send_to_target(self, call: Call) -> Response:
        """Send a call until a backend of its model answers it, or another try would not help."""
        tried: set[Replica] = set()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._try(call, tried)
            except _TryAgain as exc:
                failed = call.replica
                if failed is not None and not exc.is_elsewhere:  # the next round begins with another one
                    tried = {failed}
                call.is_sent = False
                self._limiter.park(call)
                wait = self._wait_seconds(call, exc, tries)
                if wait is None:
                    if exc.answer is None or failed is None:
                        raise exc.refused from exc
                    self._replicas.begin(failed)
                    outgoing = self._outgoing(call, failed)
                    # The backend's own words say most.
                    return Response(exc.answer, failed, outgoing.dialect, outgoing.conversion)
            await asyncio.sleep(wait)
            await self._limiter.reacquire(call)

    async def _try(self, call: Call, tried: set[Replica]) -> Response:
        """Send a call once, to a replica that is not among those tried, where there is one, and add it to them."""
        if call.pinned is not None and call.pinned not in self._replicas.all:
            message = "the response was stored by a backend that is not in the model list any more"
            raise Refused(404, "response_not_found", message)
        replica = call.pinned or self._replicas.place(call.target, call.attempt_id, tried=tried)
        tried.add(replica)
        outgoing = self._outgoing(call, replica)
        call.tries += 1
        call.replica, call.is_sent, call.weight_version = replica, True, self.weight_version
        self._replicas.begin(replica)
        is_half_open = self._replicas.begin_half_open(replica)
        try:
            response = await self._ask(call, outgoing, replica)
            replica.has_answered = True
            if response.answer.status in _RETRIED:
                raise await self._read_refusal(call, response, tried, is_half_open=is_half_open)
            if 300 <= response.answer.status < 400:
                await response.answer.aclose()
                # The agent would follow it past the proxy, to where nothing is recorded or counted.
                raise Refused(
                    502,
                    "backend_redirects",
                    f"{replica.backend.address} answered {response.answer.status}, which leads elsewhere; give the "
                    "api_base that it leads to",
                )
        except BaseException as exc:
            self._replicas.end(replica)
            if isinstance(exc, BackendUnavailable):
                reason = hide_in_text(str(exc))
                self._replicas.record_failure(replica, reason, is_dead=True, was_half_open=is_half_open)
                if not replica.has_answered:
                    reason += "; it has not answered any call yet"
                refused = Refused(503, "backend_unavailable", reason, retry_after=1.0 if replica.has_answered else None)
                is_last = self._clock.now() - replica.down_since > _BLIP_SECONDS
                raise _TryAgain(refused, is_elsewhere=self._is_elsewhere(call, tried), is_last=is_last) from exc
            if isinstance(exc, BackendTimeout | BackendBroke):
                refused = refusal_of(exc)
                self._replicas.record_failure(replica, refused.message, is_dead=False, was_half_open=is_half_open)
                raise refused from exc
            if is_half_open and not isinstance(exc, _TryAgain):
                self._replicas.cancel_half_open(replica)
            raise
        if response.answer.status < 500:
            self._replicas.record_answer(replica)
        else:
            reason = f"it answered {response.answer.status}"
            self._replicas.record_failure(replica, reason, is_dead=False, was_half_open=is_half_open)
        return response

    async def _ask(self, call: Call, outgoing: _Outgoing, replica: Replica) -> Response:
        added: dict[str, Any] = {}
        if outgoing.dialect is not None and outgoing.fields is not None:
            added = outgoing.dialect.additions(outgoing.fields, tokens=replica.backend.gives_tokens)
        refused: set[str] = set()
        while True:
            answer = await replica.backend.send(_request(call, outgoing, replica, added))
            if answer.status not in (400, 422) or not added:
                break
            try:
                said = await answer.read()
            finally:
                await answer.aclose()
            named = {name for name in added if name.encode() in said}
            if not named:
                whole = WholeAnswer(answer.status, said, answer.headers)
                return Response(whole, replica, outgoing.dialect, outgoing.conversion)
            # It may not know these fields, or only repeat a request that it refuses for another reason.
            refused |= named
            added = {name: value for name, value in added.items() if name not in named}
        if refused and answer.status < 400 and not replica.refuses_fields:
            replica.refuses_fields = True
            logger.warning(
                "lightning.backend_refuses_fields backend=%s fields=%s; calls go on without them, each after another "
                "try, and without the tokens that they ask for",
                replica.backend.address,
                ",".join(sorted(refused)),
            )
        return Response(answer, replica, outgoing.dialect, outgoing.conversion, added)

    async def _read_refusal(
        self, call: Call, response: Response, tried: Set[Replica], *, is_half_open: bool
    ) -> _TryAgain:
        """Return what to raise for an answer that asks for another try; it is read, for it may be the last."""
        answer, replica = response.answer, response.replica
        try:
            body = await answer.read()
        finally:
            await answer.aclose()
        if answer.status == 429:
            self._replicas.record_success(replica)  # it lives
        else:
            self._replicas.record_failure(
                replica, f"it answered {answer.status}", is_dead=False, was_half_open=is_half_open
            )
        kind = "rate_limited" if answer.status == 429 else "backend_unavailable"
        refused = Refused(answer.status, kind, f"{replica.backend.address} answered {answer.status}", retry_after=1.0)
        return _TryAgain(
            refused,
            is_elsewhere=self._is_elsewhere(call, tried),
            is_last=answer.header("x-should-retry") == "false",
            asked_seconds=asked_seconds(answer.header),
            answer=WholeAnswer(answer.status, body, answer.headers),
        )

    def _is_elsewhere(self, call: Call, tried: Set[Replica]) -> bool:
        return call.pinned is None and self._replicas.has_other(call.target, tried)

    def _wait_seconds(self, call: Call, failed: _TryAgain, tries: int) -> float | None:
        """Return how long to wait for another try; None where there is to be none."""
        if tries > self._retries:
            return None
        if failed.is_elsewhere:
            return 0.0
        headers, asked = call.request.headers, failed.asked_seconds
        if failed.is_last or headers.get(_RETRIES_TAKEN, "0") != "0":
            return None
        if asked is None:
            jitter = random.uniform(0, self._first_pause_seconds)
            asked = self._first_pause_seconds * 2 ** min(tries - 1, 10) + jitter
            asked = min(asked, _LONGEST_PAUSE_SECONDS)
        elif asked > _LONGEST_ASKED_SECONDS:
            return None
        waits = [_number(headers.get(name, "")) or math.inf for name in _CLIENT_TIMEOUTS]
        return asked if call.seconds() + asked < min(waits) else None


def _number(text: str) -> float | None:
    """Return a number of 0 or more; None for any other text."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)) and number >= 0:
            return number
    return None


def _is_no_answer(status: int) -> bool:
    return status == 429 or status >= 500


def _count_abandoned(call: Call) -> None:
    """Count what a model may have used that did not answer in time, or broke off, and is given up for another one."""
    tokens, _ = call.estimated_tokens()
    call.abandoned_tokens += tokens
    if call.replica is not None:
        call.abandoned_cost += call.replica.cost(tokens, 0, None) or 0.0


def refusal_of(error: Exception) -> Refused:
    """Return the error that an agent gets of a backend that failed and is not asked again."""
    message = hide_in_text(str(error))
    if isinstance(error, BackendTimeout):
        return Refused(504, "backend_timeout", message)
    return Refused(502, "backend_broke", message)


def _request(call: Call, outgoing: _Outgoing, replica: Replica, added: dict[str, Any]) -> BackendRequest:
    passed = _PASSED_ON if outgoing.conversion is None else _PASSED_ON_CONVERTED
    headers = [(name, value) for name, value in call.request.headers.items() if name in passed]
    fields, body, model = outgoing.fields, outgoing.body, replica.model
    if fields is not None and fields.get("model", model) != model:
        fields = {**fields, **added, "model": model}
        body = dump(fields)
    elif fields is not None and added:
        body = _with_fields(body, fields, added)
        fields = {**fields, **added}
    return BackendRequest(call.request.method, outgoing.path, outgoing.query, headers, body, fields, call.attempt_id)


def _with_fields(body: bytes, fields: dict[str, Any], added: dict[str, Any]) -> bytes:
    """Add fields to a JSON object; what it has is not written anew where that can be avoided."""
    if added.keys() & fields.keys() or not fields:
        return dump({**fields, **added})
    start = body.index(b"{") + 1
    return b"{" + dump(added)[1:-1] + b"," + body[start:]
