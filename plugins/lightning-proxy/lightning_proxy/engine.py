"""What happens to each request: who asks, may it go on, what is answered, what is recorded."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lightning_http.call import ClientGone

from lightning_core.errors import BudgetExhausted
from lightning_proxy.answer import Answer
from lightning_proxy.backend import BackendBroke, BackendTimeout
from lightning_proxy.call import Call, CallRecord
from lightning_proxy.dialects import DIALECTS, Dialect
from lightning_proxy.dispatch import Sender, Sent, error_fields, refusal_of
from lightning_proxy.exchange import Exchange, Headers
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.live_attempts import LiveAttempts
from lightning_proxy.model_list import Replica
from lightning_proxy.outbox import Outbox, Ticket
from lightning_proxy.owner import Attribution, Owner, parent_span
from lightning_proxy.paths import (
    PREFIX,
    RESPONSES,
    OpenPaths,
    counts_tokens,
    error_dialect,
    quoted,
    response_of,
    split_path,
)
from lightning_proxy.refusals import Refused, openai_error
from lightning_proxy.relay import EarlyEnd, StreamRelay
from lightning_proxy.replicas import Replicas
from lightning_proxy.spans import Capture, bare_span_of, span_of, without_keys_of
from lightning_proxy.spending import Spending
from lightning_proxy.traffic import Traffic

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(slots=True)
class Counts:
    """What went through so far."""

    calls: int = 0
    failed: int = 0
    refused: int = 0
    hung_up: int = 0
    tokens: int = 0
    usd: float = 0.0


@dataclass
class Engine:
    """All that requests share."""

    attribution: Attribution
    attempts: LiveAttempts
    outbox: Outbox
    traffic: Traffic
    replicas: Replicas
    sender: Sender
    capture: Capture
    spending: Spending | None
    allow_unattributed: bool
    open_paths: OpenPaths
    max_body_bytes: int
    weight_version: str | None = None
    counts: Counts = field(default_factory=Counts)

    async def serve(
        self,
        exchange: Exchange,
        path: str,
        owner: Owner | None,
        *,
        has_key: bool,
        may_manage: bool = False,
        purpose: str | None = None,
    ) -> None:
        """Answer a request whose caller is known.

        Args:
            exchange: The request.
            path: Its path below the attempt's.
            owner: Whose it is; None for nobody's.
            has_key: Whether the caller has the attempt's key.
            may_manage: Whether the caller may change what the backend has and serves: it has the algorithm's key.
            purpose: What it is for, where it is none of the agent's own.
        """
        below, is_of_api = split_path(path)
        method = exchange.method
        dialect = DIALECTS.get(below) if method == "POST" else None
        if method == "GET" and (below == "/models" or below.startswith("/models/")):
            await self._list_models(exchange, below.removeprefix("/models").removeprefix("/"))
            return
        if dialect is None and not is_of_api:
            raise Refused(404, "unknown_path", f"the proxy serves what is under {PREFIX}; got {exchange.path!r}")
        stored = response_of(method, below)
        at = None if stored is None else await self.replicas.of_response(owner, stored)
        is_free = at is not None or counts_tokens(method, below)
        manages = dialect is None and not is_free and not self.open_paths.has(method, below)
        if manages and not may_manage:
            if stored is not None:
                message = f"the proxy knows no response {stored!r} of this attempt; those of others are not for it"
                raise Refused(404, "response_not_found", message)
            raise self._closed(f"{method} {PREFIX}{below}", f"{method} {below[1:]}")
        if owner is None and not manages and not self.allow_unattributed:
            raise Refused(
                403,
                "unattributed",
                "the call belongs to no attempt: use the base URL of ProxyLLM.get_base_url(rollout_id, attempt_id), "
                "the key of the attempt, or the headers x-rollout-id and x-attempt-id",
            )
        if owner is not None:
            await self.attempts.require(owner, has_key=has_key)
            self.outbox.require_room()
        body = await exchange.body(self.max_body_bytes)
        if dialect is None:
            await self._pass_through(exchange, quoted(below), body, owner, at, is_free=is_free, manages=manages)
            return
        fields = parse_object(body)
        if fields is None:
            raise Refused(400, "invalid_json", "the request's body is no JSON object")
        if not isinstance(fields.get("model"), str | None):
            raise Refused(400, "invalid_request", f"model is {fields['model']!r:.100}; it is the name of one")
        if fields.get("model") is None and len(models := self.replicas.models()) > 1:
            raise Refused(400, "no_model", f"the call names no model; there are: {', '.join(models)}")
        if below == RESPONSES:
            at = await self._previous(owner, fields)
        await self._call(exchange, below, body, fields, dialect, owner, at, purpose)

    def _closed(self, what: str, entry: str) -> Refused:
        return Refused(
            403,
            "not_allowed",
            f"{what} is not for agents: the proxy does not record it or know its price. allow_paths=[{entry!r}] of the "
            "proxy opens it, with the backend's key; the key of the proxy itself does, too",
        )

    async def _previous(self, owner: Owner | None, fields: dict[str, Any]) -> Replica | None:
        """Return where the response is that a call goes on from; None where it may go anywhere.

        Raises:
            Refused: When the call leads to what belongs to others, or is not recorded.
        """
        opens = self.open_paths.has
        if fields.get("conversation") is not None and not opens("GET", "/conversations/id"):
            raise self._closed("conversation, which belongs to the backend's account,", "conversations")
        if fields.get("background") and not opens("GET", f"{RESPONSES}/id"):
            raise self._closed("background, whose answer is fetched later,", "responses")
        previous = fields.get("previous_response_id")
        if previous is None:
            return None
        at = await self.replicas.of_response(owner, str(previous))
        if at is None and not opens("GET", f"{RESPONSES}/{previous}"):
            message = f"the proxy knows no response {previous!r:.200} of this attempt; send the whole conversation"
            raise Refused(400, "previous_response_not_found", message)
        # The agent may go on with another model, which may be elsewhere.
        return at if at is not None and fields.get("model") in (None, at.model_name) else None

    # A call that is understood

    async def _call(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any],
        dialect: Dialect,
        owner: Owner | None,
        at: Replica | None,
        purpose: str | None,
    ) -> None:
        call = Call(exchange, is_stream=fields.get("stream") is True)
        began = time.perf_counter()
        record = CallRecord(
            owner=owner or _NOBODY,
            dialect=dialect,
            request=fields,
            began=time.time(),
            purpose=purpose,
            parent=parent_span(exchange.headers.get("traceparent", "")),
            body_bytes=len(body),
            size=len(body),
        )
        ticket = None if owner is None else self._begin(owner, call)
        is_counted = False
        self.counts.calls += 1
        try:
            async with call:
                try:
                    await self.traffic.enter(call, call.abort)
                    await self._start_budgeted()
                    is_counted = True
                    await self._answer(exchange, path, body, fields, dialect, record, at, began)
                finally:
                    self.traffic.leave(call)
        except Refused as refused:
            record.fail(refused.kind, refused.message)
            if exchange.status == 0:
                record.status = refused.status
                await self._tell(exchange, refused, dialect)
            else:
                await self._break_off(exchange, refused, dialect)
        except ClientGone:
            if not record.was_taken:
                record.fail("client_disconnected", "the agent hung up before the answer came to its end")
                self.counts.hung_up += 1
        except asyncio.CancelledError:
            record.fail("proxy_stopped", "the proxy was stopped")
            raise
        except Exception as exc:
            record.fail(type(exc).__name__, "the proxy failed; its log says why")
            raise
        finally:
            record.duration = time.perf_counter() - began
            record.last_weight_version = self.weight_version if record.weight_version is not None else None
            try:
                self._count(record, is_counted=is_counted)
            finally:
                if ticket is not None:
                    # When the event loop has its next turn: in this one it writes the answer.
                    asyncio.get_running_loop().call_soon(self._record, ticket, record)

    def _begin(self, owner: Owner, call: Call) -> Ticket:
        """Take note of a call that begins.

        Raises:
            Refused: When its attempt has ended while its body came, or while the store was asked.
        """
        self.attempts.require_not_ended(owner)
        return self.outbox.begin(owner, call.abort)

    def _record(self, ticket: Ticket, record: CallRecord) -> None:
        try:
            span = span_of(record, self.capture)
        except Exception as exc:  # the end of the attempt waits for a span, whatever an answer looks like
            logger.exception("lightning.call_not_recorded rollout_id=%s", record.owner.rollout_id)
            span = bare_span_of(record, exc)
        self.outbox.end(ticket, span, record.size)

    async def _start_budgeted(self) -> None:
        if self.spending is not None:
            try:
                await self.spending.start_call()
            except BudgetExhausted as exc:
                raise Refused(402, "budget_exhausted", str(exc)) from exc

    def _count(self, record: CallRecord, *, is_counted: bool) -> None:
        tokens, cost = 0, record.cost
        if record.price is None or record.is_refused or record.error_kind == "backend_redirects":
            cost = 0.0
        else:
            given, taken = record.spent()
            tokens = given + taken
            if cost is None:
                cost = record.price(given, taken, record.answer.cached_tokens)
        self.counts.tokens += tokens
        self.counts.usd += cost or 0.0
        self.counts.failed += record.error_kind is not None
        if self.spending is not None and is_counted:
            self.spending.end_call(tokens=tokens, usd=cost)

    async def _answer(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any],
        dialect: Dialect,
        record: CallRecord,
        at: Replica | None,
        began: float,
    ) -> None:
        def on_try(replica: Replica) -> None:
            record.tries += 1
            record.price = replica.cost
            record.address = replica.backend.address
            record.model_name = replica.model_name
            record.weight_version = self.weight_version

        def on_failed_try() -> None:
            record.price = None  # as if it had not been sent
            self.traffic.rest()

        attempt = None if record.owner is _NOBODY else record.owner.attempt_id
        sent = await self.sender.send(
            exchange,
            path,
            body,
            fields,
            dialect=dialect,
            attempt=attempt,
            at=at,
            on_try=on_try,
            on_failed_try=on_failed_try,
        )
        try:
            if sent.answer.status < 400 and sent.answer.header("content-type").startswith("text/event-stream"):
                await self._relay(exchange, sent, dialect, record, began)
            else:
                await self._hand_back(exchange, sent, dialect, record)
        except (BackendBroke, BackendTimeout, EarlyEnd) as exc:
            refused = refusal_of(exc)
            self.replicas.failed(sent.replica, refused.message, is_dead=False)
            raise refused from exc
        except (ClientGone, asyncio.CancelledError):
            if record.was_taken:
                self._went_well(sent)
            raise
        else:
            self._went_well(sent)
        finally:
            self.sender.release(sent)
            try:
                await sent.answer.aclose()
            finally:
                if sent.answer.status < 400:
                    cached = record.answer.cached_tokens
                    record.cost = sent.replica.cost(record.input_tokens, record.output_tokens, cached)
                else:
                    record.is_refused, record.cost = True, 0.0

    def _went_well(self, sent: Sent) -> None:
        if sent.answer.status < 500:
            self.replicas.went_well(sent.replica)

    async def _hand_back(self, exchange: Exchange, sent: Sent, dialect: Dialect, record: CallRecord) -> None:
        """Answer in one piece."""
        status, headers = sent.answer.status, _headers_of(sent)
        body = await sent.answer.read()
        record.status = status
        record.size += len(body)
        if status >= 400:
            body = without_keys_of(sent.replica, body)
            told = error_fields(body)
            if told is None:
                message = f"{sent.replica.backend.address} answered {status}: {body[:500].decode('utf-8', 'replace')}"
                body = dump(dialect.error(Refused(status, "backend_error", message)))
                headers = [*_retry_after(sent), (b"content-type", b"application/json")]
            else:
                error = told["error"]
                message = str(error.get("message") if isinstance(error, dict) else error)
                record.error_code = _code(error)
            record.fail(str(status), message)
            await exchange.answer(status, body, headers)
            return
        fields = parse_object(body)
        if fields is None:
            shown = without_keys_of(sent.replica, body)[:200].decode("utf-8", "replace")
            raise Refused(502, "backend_garbage", f"{sent.replica.backend.address} answered no JSON object: {shown!r}")
        record.answer = dialect.read(fields)
        await self._keep_response(sent, record)
        self._look_for_failure(sent, record)
        if sent.added:
            dialect.strip(fields, sent.added)
            body = dump(fields)
        await exchange.answer(status, body, headers)

    async def _relay(self, exchange: Exchange, sent: Sent, dialect: Dialect, record: CallRecord, began: float) -> None:
        """Answer piece by piece."""

        async def keep(answer: Answer) -> None:
            record.answer = answer
            await self._keep_response(sent, record)

        choices = dialect.choices(record.request)
        relay = StreamRelay(exchange, dialect, sent.added, choices, on_begin=keep if dialect.is_stored else None)
        record.status = sent.answer.status
        try:
            await relay.run(sent, _headers_of(sent))
        finally:
            record.answer = relay.finish()
            record.was_taken = relay.was_taken()
            record.size += relay.size
            if relay.first_chunk is not None:
                record.first_chunk_seconds = relay.first_chunk - began
        self._look_for_failure(sent, record)

    async def _keep_response(self, sent: Sent, record: CallRecord) -> None:
        """Record where an answer is stored, before the agent can ask for it."""
        response_id = record.answer.id
        if record.dialect.is_stored and response_id is not None and record.request.get("store") is not False:
            owner = None if record.owner is _NOBODY else record.owner
            await self.replicas.keep_response(owner, response_id, sent.replica)

    def _look_for_failure(self, sent: Sent, record: CallRecord) -> None:
        if (failure := record.answer.failure) is not None:
            said = without_keys_of(sent.replica, failure.encode("utf-8", "replace")).decode()
            record.fail("backend_error", said)

    # A call that is not

    async def _pass_through(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        owner: Owner | None,
        at: Replica | None,
        *,
        is_free: bool,
        manages: bool,
    ) -> None:
        """Hand a call on as it is. One that manages the backend is not a model call: no pause holds it, and it is free.

        Raises:
            Refused: When it does not say which backend it is for, and there are several.
        """
        call = Call(exchange, is_stream=True)
        fields = parse_object(body) if body[:1] == b"{" else None
        names_model = fields is not None and isinstance(fields.get("model"), str)
        if at is None and not names_model and (count := len(self.replicas.all)) > 1:
            raise Refused(
                400,
                "no_model",
                f"the call names no model in a JSON body, and the proxy has {count} backends, so it is not clear which "
                "one it is for; make it through a proxy with one backend",
            )
        ticket = None if owner is None else self._begin(owner, call)
        is_counted = False
        cost: float | None = 0.0
        self.counts.calls += 1

        def on_try(_: Replica) -> None:
            nonlocal cost
            cost = None  # nobody knows

        def on_failed_try() -> None:
            nonlocal cost
            cost = 0.0  # as if it had not been sent
            self.traffic.rest()

        try:
            async with call:
                try:
                    if not manages:
                        await self.traffic.enter(call, call.abort)
                        if not is_free:
                            await self._start_budgeted()
                            is_counted = True
                    if await self._pass(exchange, path, body, fields, owner, at, on_try, on_failed_try) >= 400:
                        cost = 0.0
                finally:
                    self.traffic.leave(call)
        except Refused as refused:
            if refused.kind == "backend_redirects":
                cost = 0.0
            if exchange.status:
                raise ClientGone from refused  # nothing can be added to an answer that nobody understands
            raise
        finally:
            if self.spending is not None and is_counted:
                self.spending.end_call(tokens=0, usd=cost)
            if ticket is not None:
                self.outbox.end(ticket, None)

    async def _pass(
        self,
        exchange: Exchange,
        path: str,
        body: bytes,
        fields: dict[str, Any] | None,
        owner: Owner | None,
        at: Replica | None,
        on_try: Callable[[Replica], None],
        on_failed_try: Callable[[], None],
    ) -> int:
        """Hand a call on, and return the status of its answer."""
        attempt = None if owner is None else owner.attempt_id
        sent = await self.sender.send(
            exchange,
            path,
            body,
            fields,
            dialect=None,
            attempt=attempt,
            at=at,
            on_try=on_try,
            on_failed_try=on_failed_try,
        )
        status = sent.answer.status
        try:
            if status >= 400:
                said = without_keys_of(sent.replica, await sent.answer.read())
                await exchange.answer(status, said, _headers_of(sent))
            else:
                await exchange.begin(status, _headers_of(sent))
                async for piece in sent.answer.pieces():
                    await exchange.push(piece)
                await exchange.end()
        except (BackendBroke, BackendTimeout) as exc:
            refused = refusal_of(exc)
            self.replicas.failed(sent.replica, refused.message, is_dead=False)
            raise refused from exc
        else:
            self._went_well(sent)
        finally:
            self.sender.release(sent)
            await sent.answer.aclose()
        return status

    async def _list_models(self, exchange: Exchange, one: str) -> None:
        listed = [
            {"id": name, "object": "model", "created": 0, "owned_by": "lightning"} for name in self.replicas.models()
        ]
        if not one:
            await exchange.answer_json(200, {"object": "list", "data": listed})
            return
        found = next((model for model in listed if model["id"] == one), None)
        if found is None:
            raise Refused(404, "model_not_found", f"no model named {one!r}")
        await exchange.answer_json(200, found)

    # Errors

    async def _tell(self, exchange: Exchange, refused: Refused, dialect: Dialect | None) -> None:
        self.counts.refused += 1
        told = openai_error(refused) if dialect is None else dialect.error(refused)
        await exchange.answer(refused.status, dump(told), refused.headers())

    async def refuse(self, exchange: Exchange, refused: Refused, path: str) -> None:
        """Answer a request that is not let through, in the form of its API."""
        await self._tell(exchange, refused, error_dialect(path, exchange.headers))

    async def _break_off(self, exchange: Exchange, refused: Refused, dialect: Dialect) -> None:
        """End a stream that has begun with what its API has for that."""
        try:
            await exchange.push(dialect.error_event(refused))
            await exchange.end()
        except ClientGone:
            self.counts.hung_up += 1


_NOBODY = Owner(None, "", "")


def _code(error: Any) -> str | None:
    """Return what a backend calls an error; None for what may be more than a name."""
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return str(code) if isinstance(code, str | int) and _NAME.fullmatch(str(code)) else None


def _headers_of(sent: Sent) -> Headers:
    # As aiohttp reads them: so the bytes are those that came.
    return [
        (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in sent.answer.headers
    ]


def _retry_after(sent: Sent) -> Headers:
    return [header for header in _headers_of(sent) if header[0] == b"retry-after"]
