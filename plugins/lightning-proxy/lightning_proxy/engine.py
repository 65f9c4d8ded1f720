"""What happens to each request: who asks, may it go on, what is answered, what is recorded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from lightning_http.auth import Role
from lightning_http.body import ClientGone
from lightning_http.web_pages import OtherSite, require_local, require_same_site

from lightning_core.adapter.genai import ATTEMPT_LIMIT, BUDGET_EXHAUSTED
from lightning_core.budget import Reserve
from lightning_core.errors import AccessDenied, AttemptLimitReached, BudgetExhausted, LightningError, StoreUnavailable
from lightning_proxy.apis import GEMINI, Dialect, dialect_of
from lightning_proxy.apis.chat import RETURN_TOKEN_IDS
from lightning_proxy.apis.responses import StoredResponses
from lightning_proxy.backend import BackendBroke, BackendTimeout
from lightning_proxy.call import Call, CancelScope
from lightning_proxy.control import Settings
from lightning_proxy.dispatch import Response, Sender, refusal_of
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.limiter import Limiter
from lightning_proxy.model_list import Models
from lightning_proxy.outbox import Outbox, Ticket
from lightning_proxy.owner import Attribution, LiveAttempts, parent_span, read_path
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
from lightning_proxy.relay import hand_back
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.request import Receive, Refused, Request, Send, openai_error, proxy_stopped
from lightning_proxy.spans import Capture, bare_span_of, span_of
from lightning_proxy.spending import Spending, Started, UsageSoFar

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"


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
    """Answers requests; an ASGI application."""

    attribution: Attribution
    attempts: LiveAttempts
    outbox: Outbox
    limiter: Limiter
    replicas: Replicas
    models: Models
    sender: Sender
    capture: Capture
    spending: Spending | None
    open_paths: OpenPaths
    serve_control: Callable[[Call], Awaitable[bool]]
    """Answers a request that controls the proxy; returns False for any other one."""
    run_id: str | None
    """The proxy's own run; None without a store."""
    local_only: bool
    """Whether only this machine may call, without a key: then a page in a browser must not be talked into calling
    under another name."""
    settings: Settings
    counts: Counts = field(default_factory=Counts)
    usage: UsageSoFar = field(default_factory=UsageSoFar)
    responses: StoredResponses = field(default_factory=StoredResponses)
    """Those that were converted."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive, send, stall_seconds=self.settings.stall_seconds)
        try:
            await self._serve(request)
        except Refused as refused:
            await self._refuse(request, refused)
        except ClientGone:
            return
        except asyncio.CancelledError:  # by the server, which stops
            request.hurry()
            await self._refuse(request, proxy_stopped())
        except StoreUnavailable as exc:
            await self._refuse(request, Refused(503, "store_unavailable", str(exc), retry_after=1.0))
        except LightningError as exc:
            await self._refuse(request, Refused(500, "proxy_error", str(exc)))
        except Exception:
            logger.exception("lightning.proxy_request_failed path=%s", request.path)
            await self._refuse(request, Refused(500, "proxy_error", "the proxy failed; its log says why"))

    async def _serve(self, request: Request) -> None:
        try:
            if self.local_only:
                require_local(request.headers)
            hint = "; cors_allow_origins of the proxy allows others"
            require_same_site(request.method, request.headers, self.settings.cors_allow_origins, hint=hint)
        except OtherSite as exc:
            raise Refused(403, "other_site", str(exc)) from exc
        except AccessDenied as exc:
            raise Refused(403, "not_local", str(exc)) from exc
        addressed = read_path(request.path)
        if addressed.path == HEALTH_PATH and addressed.rollout_id is None:
            await request.respond_json(200, {"status": "ok"})
            return
        if request.headers.get("upgrade", "").lower() == "websocket":
            raise Refused(426, "no_websocket", "the proxy has no WebSockets; make the call over HTTP, with POST")
        who = self.attribution.identify(request.headers, request.key)
        owner = self.attribution.owner(addressed, request.headers, who)
        if owner is not None and self.run_id is None:
            owner = None
        elif owner is not None and owner.run_id == self.run_id:
            owner = owner._replace(run_id=None)  # as of a caller without a key
        call = Call(
            request=request,
            path=addressed.path if addressed.path != PREFIX else f"{PREFIX}/",
            owner=owner,
            role=who.role,
            may_manage=who.role >= Role.ALGORITHM and not self.local_only,
            purpose=addressed.purpose,
        )
        if await self.serve_control(call):
            return
        below, is_of_api = split_path(call.path)
        if request.method in ("GET", "HEAD") and (below == "/models" or below.startswith("/models/")):
            await self._list_models(request, below.removeprefix("/models").removeprefix("/"))
        else:
            await self._admit(call, below, is_of_api=is_of_api)
            await self._run(call)

    # May it be made?

    async def _admit(self, call: Call, below: str, *, is_of_api: bool) -> None:
        """Find out what a call is, and read its body.

        Args:
            call: The call.
            below: Its path below `/v1`.
            is_of_api: Whether it is under `/v1`.

        Raises:
            Refused: When the caller may not make it.
        """
        request, owner = call.request, call.owner
        call.dialect = dialect_of(below) if request.method == "POST" else None
        if call.dialect is None and not is_of_api:
            raise Refused(404, "unknown_path", f"the proxy serves what is under {PREFIX}; got {request.path!r}")
        stored = response_of(request.method, below)
        call.pinned = None if stored is None else self.replicas.of_response(owner, stored)
        is_known = call.pinned is not None or counts_tokens(request.method, below)
        if call.dialect is None and not is_known and not self.open_paths.has(request.method, below):
            if below.endswith(":countTokens"):
                raise Refused(404, "not_served", "the proxy counts no tokens; an answer's usageMetadata has them")
            if not call.may_manage and stored is not None:
                message = f"the proxy knows no response {stored!r} of this attempt; those of others are not for it"
                raise Refused(404, "response_not_found", message)
            if not call.may_manage:
                raise self._closed(f"{request.method} {PREFIX}{below}", f"{request.method} {below[1:]}")
            call.is_management = True
        call.is_free = is_known or call.is_management
        if owner is None and not call.is_management and not self.settings.allow_unattributed:
            raise Refused(
                403,
                "unattributed",
                "the call belongs to no attempt: use the base URL of ProxyLLM.get_base_url(rollout_id, attempt_id), "
                "the key of the attempt, or the headers x-rollout-id and x-attempt-id",
            )
        if owner is not None:
            await self.attempts.require(owner, has_key=call.role == Role.ATTEMPT)
            self.outbox.require_room()
        call.body = await request.read_body(self.settings.max_body_bytes)
        if call.dialect is None:
            call.path = quoted(below)
            call.fields = parse_object(call.body) if call.body[:1] == b"{" else None
            call.target = self.models.resolve(call.model, self.replicas.models())
            if call.pinned is None and call.model is None and (count := len(self.replicas.all)) > 1:
                raise Refused(
                    400,
                    "no_model",
                    f"the call names no model in a JSON body, and the proxy has {count} backends, so it is not clear "
                    "which one it is for; make it through a proxy with one backend",
                )
            return
        call.path = call.dialect.path
        fields = parse_object(call.body)
        if fields is None:
            raise Refused(400, "invalid_json", "the request's body is not a JSON object")
        call.fields = fields = call.dialect.read_request(fields, below, request.query)
        if not isinstance(fields.get("model"), str | None):
            raise Refused(400, "invalid_request", f"model is {fields['model']!r:.100}; it is the name of one")
        models = self.replicas.models()
        call.target = self.models.resolve(fields.get("model"), models)
        if call.target is None and len(models) > 1:
            raise Refused(400, "no_model", f"the call names no model; there are: {', '.join(models)}")
        if below == RESPONSES:
            call.fields = self.responses.resolve(call.attempt_id, fields)
            if call.fields is not fields:
                call.body, fields = dump(call.fields), call.fields
            call.pinned = await self._find_previous(call, fields)

    def _closed(self, what: str, entry: str) -> Refused:
        return Refused(
            403,
            "not_allowed",
            f"{what} is not for agents: the proxy does not record it or know its price. allow_paths=[{entry!r}] of the "
            "proxy opens it, with the backend's key; the key of the proxy itself does, too",
        )

    async def _find_previous(self, call: Call, fields: dict[str, Any]) -> Replica | None:
        """Return the replica with the response that a call continues; None where it may go anywhere of its model.

        Where that response is of a fallback, the call is for this model, too.

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
        found = self.replicas.of_response(call.owner, str(previous))
        if found is None and not opens("GET", f"{RESPONSES}/{previous}"):
            message = f"the proxy knows no response {previous!r:.200} of this attempt; send the whole conversation"
            raise Refused(400, "previous_response_not_found", message)
        # The agent may go on with another model, which may be elsewhere.
        if found is None or fields.get("model") is None or call.target == found.model_name:
            return found
        if found.model_name not in self.models.fallbacks(call.target):
            return None
        call.target, call.fell_back = found.model_name, True  # as the call before it
        return found

    # From its start to its end

    async def _run(self, call: Call) -> None:
        """Make a call, answer the agent, and record it."""
        scope = CancelScope(call)
        call.begin()
        call.parent = parent_span(call.request.headers)
        call.size = len(call.body)
        ticket = None
        if call.owner is not None:
            self.attempts.require_not_ended(call.owner)  # while its body came, or the store was asked
            ticket = self.outbox.begin(call.owner, scope.abort)
        started: Started | None = None
        self.counts.calls += 1
        try:
            async with scope:
                try:
                    if not call.is_management:
                        await self.limiter.acquire(call, scope.abort)
                    if self.spending is not None and not call.is_free:
                        self.limiter.park(call)  # it may have to wait for others to settle
                        started = await self._reserve(call, self.spending)
                        await self.limiter.reacquire(call)
                    await self._answer(call)
                finally:
                    self.limiter.release(call)
        except Refused as refused:
            call.fail(refused.kind, refused.message)
            if call.dialect is None and call.request.status:
                raise ClientGone from refused  # there is no way to add an error to this answer
            if call.dialect is None:
                raise
            if call.request.status == 0:
                call.status = refused.status
                await self._respond(call.request, refused, call.dialect)
            else:
                await self._break_off(call.request, refused, call.dialect)
        except ClientGone:
            if not call.is_answered:
                call.fail("client_disconnected", "the agent hung up before the answer came to its end")
                self.counts.hung_up += call.dialect is not None
        except asyncio.CancelledError:
            call.fail("proxy_stopped", "the proxy was stopped")
            raise
        except Exception as exc:
            call.fail(type(exc).__name__, "the proxy failed; its log says why")
            raise
        finally:
            call.duration = call.seconds()
            if call.weight_version is not None and call.last_weight_version is None:
                call.last_weight_version = self.sender.weight_version
            try:
                self._count(call, started)
            except Exception:  # such as a price that a backend cannot say: what was reserved is given back all the same
                logger.exception("lightning.call_not_counted path=%s", call.path)
                if started is not None:
                    started.settle(tokens=0, usd=None)
            finally:
                if ticket is not None:
                    # When the event loop has its next turn: in this one it writes the answer.
                    asyncio.get_running_loop().call_soon(self._record, ticket, call)

    async def _reserve(self, call: Call, spending: Spending) -> Started:
        limited = None
        if call.owner is not None and call.purpose is None and self.attempts.is_of_agent(call.owner):
            limited = call.owner
        try:
            return await spending.start_call(limited, lambda: self._most(call, spending))
        except AttemptLimitReached as exc:
            raise Refused(403, ATTEMPT_LIMIT, str(exc)) from exc
        except BudgetExhausted as exc:
            raise Refused(402, BUDGET_EXHAUSTED, str(exc)) from exc

    def _most(self, call: Call, spending: Spending) -> Reserve:
        """Return what a call may use at the most: nothing that is known for one that passes through as it is."""
        if call.dialect is None or call.fields is None:
            return Reserve()
        fields = self.models.with_params(call.target, call.path, call.fields)
        given, taken = self.usage.most(call.target, fields, call.body)
        if not spending.limits_usd:
            return Reserve(given + taken)
        replicas = self.replicas.of((call.target, *self.models.fallbacks(call.target)))
        # The prompt may be written to a cache, which has a price of its own.
        costs = [replica.cost(given, taken, 0, written) for replica in replicas for written in (0, given)]
        return Reserve(given + taken, max((cost for cost in costs if cost is not None), default=0.0))

    async def _answer(self, call: Call) -> None:
        response = await self.sender.send(call)
        replica, status = response.replica, response.answer.status
        is_sound = False
        try:
            await hand_back(call, response, self.replicas, self.responses)
            is_sound = True
            _check_tokens(call, response)
        except (BackendBroke, BackendTimeout) as exc:
            refused = refusal_of(exc)
            self.replicas.record_failure(replica, refused.message, is_dead=False)
            raise refused from exc
        except (ClientGone, asyncio.CancelledError):
            is_sound = call.is_answered
            raise
        finally:
            if is_sound and status < 500:
                self.replicas.record_success(replica)
            self.replicas.end(replica)
            if (versions := response.answer.weight_versions) is not None:
                call.weight_version, call.last_weight_version = map(str, versions)
            try:
                await response.answer.aclose()
            finally:
                call.is_refused = status >= 400
                if call.is_refused:
                    call.cost = 0.0
                elif call.dialect is not None:
                    call.cost = _cost(call, call.input_tokens, call.output_tokens)

    def _count(self, call: Call, started: Started | None) -> None:
        tokens, cost = 0, call.cost
        if not call.is_sent or call.is_refused or call.error_kind == "backend_redirects":
            cost = 0.0
        elif call.dialect is not None and call.replica is not None:
            given, taken = call.estimated_tokens()
            tokens = given + taken
            if call.error_kind is None and taken:
                self.usage.record(call.target, given, taken)
            if cost is None:
                cost = _cost(call, given, taken)
        tokens += call.abandoned_tokens
        if call.abandoned_cost:
            cost = (cost or 0.0) + call.abandoned_cost
        self.counts.tokens += tokens
        self.counts.usd += cost or 0.0
        self.counts.failed += call.dialect is not None and call.error_kind is not None
        if started is not None:
            started.settle(tokens=tokens, usd=cost)

    def _record(self, ticket: Ticket, call: Call) -> None:
        if call.dialect is None:
            self.outbox.end(ticket, None)
            return
        try:
            span = span_of(call, self.capture)
        except Exception as exc:  # the end of the attempt waits for a span, whatever an answer looks like
            logger.exception("lightning.call_not_recorded rollout_id=%s", ticket.owner.rollout_id)
            span = bare_span_of(call, exc)
        self.outbox.end(ticket, span, call.size)

    # Answers of the proxy's own

    async def _list_models(self, request: Request, one: str) -> None:
        served = self.replicas.models()
        names = [one] if one else self.models.names(served)
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "lightning"} for name in names]
        if not one and error_dialect(read_path(request.path).path, request.headers) is GEMINI:
            methods = ["generateContent", "streamGenerateContent"]
            models = [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]
            await request.respond_json(200, {"models": models})
        elif not one:
            await request.respond_json(200, {"object": "list", "data": listed})
        elif self.models.resolve(one, served) in served:
            await request.respond_json(200, listed[0])
        else:
            raise Refused(404, "model_not_found", f"no model named {one!r}")

    async def _refuse(self, request: Request, refused: Refused) -> None:
        """Answer a request that is refused, in the form of its API."""
        if request.status == 0:
            await self._respond(request, refused, error_dialect(read_path(request.path).path, request.headers))

    async def _respond(self, request: Request, refused: Refused, dialect: Dialect | None) -> None:
        self.counts.refused += 1
        fields = openai_error(refused) if dialect is None else dialect.error(refused)
        await request.respond(refused.status, dump(fields), refused.headers())

    async def _break_off(self, request: Request, refused: Refused, dialect: Dialect) -> None:
        """End a stream that has begun with the error event of its API."""
        try:
            await request.send_piece(dialect.error_event(refused))
            await request.end_stream()
        except ClientGone:
            self.counts.hung_up += 1


def _check_tokens(call: Call, response: Response) -> None:
    """Log the first answer of a replica that lacks the token ids that it is said to give."""
    replica, answer = response.replica, call.answer
    if not replica.backend.gives_tokens or replica.lacked_tokens or call.owner is None or call.error_kind is not None:
        return
    if RETURN_TOKEN_IDS not in response.added or response.answer.status >= 400:  # what is refused is told elsewhere
        return
    if answer.prompt_token_ids is None or any(choice.token_ids is None for choice in answer.choices):
        replica.lacked_tokens = True
        logger.warning(
            "lightning.call_without_tokens backend=%s path=%s model=%s: the answer has no token ids, so this call "
            "leaves no training row, and others of this backend may not either; it needs an engine that answers "
            "return_token_ids, as vLLM does, without a gateway in between that takes them out",
            replica.backend.address,
            call.path,
            replica.model_name,
        )


def _cost(call: Call, input_tokens: int | None, output_tokens: int | None) -> float | None:
    """Return what a call costs with so many tokens; the others are as its answer tells."""
    assert call.replica is not None
    answer = call.answer
    return call.replica.cost(
        input_tokens, output_tokens, answer.cached_tokens, answer.written_tokens, answer.written_for_an_hour
    )
