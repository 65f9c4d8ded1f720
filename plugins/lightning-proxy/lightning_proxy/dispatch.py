"""A call's way to a backend: which replica, with which body, and what is tried again."""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from typing import Any

from lightning_core.secrets import hide_in_text
from lightning_core.store.clock import Clock
from lightning_proxy.backend import (
    BackendAnswer,
    BackendBroke,
    BackendRequest,
    BackendTimeout,
    BackendUnavailable,
    WholeAnswer,
)
from lightning_proxy.dialects import Dialect
from lightning_proxy.dialects.openai_tokens import RETURN_TOKEN_IDS
from lightning_proxy.exchange import Exchange
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.model_list import Replica
from lightning_proxy.refusals import Refused
from lightning_proxy.replicas import Replicas

logger = logging.getLogger(__name__)

_RETRIED = frozenset({429, 502, 503, 504})
_LONGEST_WAIT_SECONDS = 30.0
_PASSED_ON = frozenset(
    {"content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"}
)


class _TryAgain(Exception):
    """A try that failed before anything was answered."""

    def __init__(self, refused: Refused, replica: Replica, *, wait_seconds: float | None) -> None:
        super().__init__(refused.message)
        self.refused = refused
        self.replica = replica
        self.wait_seconds = wait_seconds
        """What the backend asks for, or 0 where another replica is there; None for the usual pause."""
        self.answer: WholeAnswer | None = None
        """What the backend said."""


class Sent:
    """An answer that has begun, and how it came to be."""

    def __init__(self, answer: BackendAnswer, replica: Replica, added: dict[str, Any], tries: int) -> None:
        self.answer = answer
        self.replica = replica
        self.added = added
        """What the agent did not ask for."""
        self.tries = tries


class Sender:
    """Sends calls.

    Args:
        replicas: Where to.
        clock: Where the time comes from.
        before_retry: Returns when a call may be tried again, or raises `Refused`.
        retries: How often a call is tried again.
        first_pause_seconds: The pause before the first time; later ones are longer.
    """

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        *,
        before_retry: Callable[[], Awaitable[None]],
        retries: int,
        first_pause_seconds: float,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._before_retry = before_retry
        self._retries = retries
        self._first_pause_seconds = first_pause_seconds

    async def send(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any] | None,
        *,
        dialect: Dialect | None,
        attempt: str | None,
        at: Replica | None,
        on_try: Callable[[Replica], None],
        on_failed_try: Callable[[], None],
    ) -> Sent:
        """Send a call until a backend answers it, or another try is of no use.

        Args:
            exchange: The agent's request.
            path: Below `/v1`.
            body: What the agent sent.
            fields: The same, read; None where it is no JSON object.
            dialect: The API; None for a path that passes through.
            attempt: Whose calls go to the same replica.
            at: The one replica that can answer; None for any of the model's.
            on_try: Is told of each try, before it.
            on_failed_try: Is told of each that failed before anything was answered, whether or not another one follows.

        Returns:
            The answer, whatever its status. Whoever gets it calls `release`, and `went_well` or `failed` of the
            replicas when its end says which.

        Raises:
            Refused: When there is no answer.
        """
        tries = 0
        failed: Replica | None = None
        while True:
            tries += 1
            try:
                return await self._try(exchange, path, body, fields, dialect, attempt, at, on_try, failed, tries)
            except _TryAgain as exc:
                on_failed_try()
                if tries > self._retries:
                    if exc.answer is None:
                        raise exc.refused from exc
                    # The backend's own words say most.
                    self._replicas.begin(exc.replica)
                    return Sent(exc.answer, exc.replica, {}, tries)
                failed, wait = exc.replica, exc.wait_seconds
            if wait is None:
                jitter = random.uniform(0, self._first_pause_seconds)
                wait = min(self._first_pause_seconds * 2 ** min(tries - 1, 10) + jitter, _LONGEST_WAIT_SECONDS)
            await asyncio.sleep(wait)
            await self._before_retry()

    def release(self, sent: Sent) -> None:
        """Take note that an answer has ended."""
        self._replicas.end(sent.replica)

    async def _try(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any] | None,
        dialect: Dialect | None,
        attempt: str | None,
        at: Replica | None,
        on_try: Callable[[Replica], None],
        failed: Replica | None,
        tries: int,
    ) -> Sent:
        model = fields.get("model") if fields is not None else None
        model = model if isinstance(model, str) else None
        if at is not None and at not in self._replicas.all:
            message = "the response was stored by a backend that is not in the model list any more"
            raise Refused(404, "response_not_found", message)
        replica = at or await self._replicas.place(model, attempt, not_this=failed)
        on_try(replica)
        self._replicas.begin(replica)
        is_trial = self._replicas.begin_trial(replica)
        try:
            sent = await self._ask(exchange, path, body, fields, dialect, attempt, replica, tries)
            if sent.answer.status in _RETRIED:
                raise await self._refusing(sent, fields, at, is_trial=is_trial)
            if 300 <= sent.answer.status < 400:
                await sent.answer.aclose()
                # The agent would follow it past the proxy, to where nothing is recorded or counted.
                raise Refused(
                    502,
                    "backend_redirects",
                    f"{replica.backend.address} answered {sent.answer.status}, which leads elsewhere; give the "
                    "api_base that it leads to",
                )
        except BaseException as exc:
            self._replicas.end(replica)
            if isinstance(exc, BackendUnavailable):
                said = hide_in_text(str(exc))
                self._replicas.failed(replica, said, is_dead=True, was_trial=is_trial)
                refused = Refused(503, "backend_unavailable", said, retry_after=1.0)
                raise self._again(refused, replica, fields, at) from exc
            if isinstance(exc, BackendTimeout | BackendBroke):
                refused = refusal_of(exc)
                self._replicas.failed(replica, refused.message, is_dead=False, was_trial=is_trial)
                raise refused from exc
            if is_trial and not isinstance(exc, _TryAgain):
                self._replicas.trial_undecided(replica)
            raise
        if sent.answer.status < 500:
            self._replicas.answers(replica)
        else:
            self._replicas.failed(replica, f"it answered {sent.answer.status}", is_dead=False, was_trial=is_trial)
        return sent

    async def _ask(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any] | None,
        dialect: Dialect | None,
        attempt: str | None,
        replica: Replica,
        tries: int,
    ) -> Sent:
        refused: set[str] = set()
        while True:
            added = _additions(dialect, fields, replica, replica.refused_fields.at(self._clock.now()) | refused)
            answer = await replica.backend.send(_request(exchange, path, body, fields, replica.model, added, attempt))
            if answer.status not in (400, 422) or not added:
                break
            try:
                said = await answer.read()
            finally:
                await answer.aclose()
            named = {name for name in added if name.encode() in said}
            if not named:
                return Sent(WholeAnswer(answer.status, said, answer.headers), replica, {}, tries)
            # It may not know these fields, or only repeat a request that it refuses for another reason.
            refused |= named
        if answer.status < 400:
            replica.refused_fields.take(added)
            if refused:
                self._note_refused(replica, refused, (attempt, body))
        return Sent(answer, replica, added, tries)

    def _note_refused(self, replica: Replica, refused: Set[str], call: object) -> None:
        news = replica.refused_fields.refuse(refused, call, self._clock.now())
        if news:
            logger.warning(
                "lightning.backend_refuses_fields backend=%s fields=%s; calls go on without them, and without the "
                "tokens that they ask for",
                replica.backend.address,
                ",".join(sorted(news)),
            )

    async def _refusing(
        self, sent: Sent, fields: dict[str, Any] | None, at: Replica | None, *, is_trial: bool
    ) -> _TryAgain:
        """Return what to raise for an answer that asks for another try; it is read, for it may be the last."""
        answer, replica = sent.answer, sent.replica
        try:
            body = await answer.read()
        finally:
            await answer.aclose()
        if answer.status == 429:
            self._replicas.went_well(replica)  # it lives
        else:
            self._replicas.failed(replica, f"it answered {answer.status}", is_dead=False, was_trial=is_trial)
        kind = "rate_limited" if answer.status == 429 else "backend_unavailable"
        refused = Refused(answer.status, kind, f"{replica.backend.address} answered {answer.status}", retry_after=1.0)
        again = self._again(refused, replica, fields, at, asked=answer.header("retry-after"))
        again.answer = WholeAnswer(answer.status, body, answer.headers)
        return again

    def _again(
        self, refused: Refused, replica: Replica, fields: dict[str, Any] | None, at: Replica | None, *, asked: str = ""
    ) -> _TryAgain:
        model = fields.get("model") if fields is not None else None
        wait: float | None = None
        with suppress(ValueError):
            if math.isfinite(seconds := float(asked)):
                wait = min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)
        if at is None and self._replicas.has_other(model if isinstance(model, str) else None, replica):
            wait = 0.0
        return _TryAgain(refused, replica, wait_seconds=wait)


def refusal_of(error: Exception) -> Refused:
    """Return what an agent is told of a backend that failed and is not asked again."""
    said = hide_in_text(str(error))
    if isinstance(error, BackendTimeout):
        return Refused(504, "backend_timeout", said)
    return Refused(502, "backend_broke", said)


def _additions(
    dialect: Dialect | None, fields: dict[str, Any] | None, replica: Replica, refused: Set[str]
) -> dict[str, Any]:
    """Return what to ask besides what the agent asks, without what is refused."""
    if dialect is None or fields is None:
        return {}
    tokens = replica.backend.gives_tokens is not False and RETURN_TOKEN_IDS not in refused
    wanted = dialect.additions(fields, tokens=tokens)
    return {name: value for name, value in wanted.items() if name not in refused} if refused else wanted


def _request(
    exchange: Exchange,
    path: str,
    body: bytes,
    fields: dict[str, Any] | None,
    model: str,
    added: dict[str, Any],
    attempt: str | None,
) -> BackendRequest:
    headers = [(name, value) for name, value in exchange.headers.items() if name in _PASSED_ON]
    asked = fields
    if fields is not None and fields.get("model", model) != model:
        asked = {**fields, **added, "model": model}
        body = dump(asked)
    elif fields is not None and added:
        asked = {**fields, **added}
        body = with_fields(body, fields, added)
    return BackendRequest(exchange.method, path, exchange.query, headers, body, asked, attempt)


def with_fields(body: bytes, fields: dict[str, Any], added: dict[str, Any]) -> bytes:
    """Add fields to a JSON object, without writing anew what it has where that can be."""
    if added.keys() & fields.keys() or not fields:
        return dump({**fields, **added})
    start = body.index(b"{") + 1
    return b"{" + dump(added)[1:-1] + b"," + body[start:]


def error_fields(body: bytes) -> dict[str, Any] | None:
    """Return a backend's error where it has the form that agents understand; None where it has not."""
    fields = parse_object(body)
    return fields if fields is not None and "error" in fields else None
