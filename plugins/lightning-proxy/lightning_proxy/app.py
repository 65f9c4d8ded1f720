"""Answers requests: who asks, and then for a model call three steps: admit, send, settle."""

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

from lightning_http.auth import Role
from lightning_http.body import ClientGone
from lightning_http.web_pages import OtherSite, require_local, require_same_site

from lightning_core.adapter.genai import ATTEMPT_LIMIT, BUDGET_EXHAUSTED
from lightning_core.budget import NOTHING, Reserve
from lightning_core.errors import AccessDenied, AttemptLimitReached, BudgetExhausted, LightningError, StoreUnavailable
from lightning_proxy.admit import NOT_COUNTED, Abort, Started
from lightning_proxy.apis import GEMINI, Dialect
from lightning_proxy.apis.chat import RETURN_TOKEN_IDS
from lightning_proxy.backend import BackendBroke, BackendTimeout, TokenCounts
from lightning_proxy.call import Call, CancelScope
from lightning_proxy.jsons import dump
from lightning_proxy.outbox import Ticket
from lightning_proxy.owner import read_path
from lightning_proxy.paths import error_dialect, split_path
from lightning_proxy.reader import Caller, read_call
from lightning_proxy.relay import hand_back
from lightning_proxy.request import Receive, Refused, Request, Send, openai_error, proxy_stopped, unavailable
from lightning_proxy.routes import serve_control
from lightning_proxy.send import Response, refusal_of
from lightning_proxy.service import ProxyService
from lightning_proxy.spans import bare_span_of, span_of

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"


class App:
    """Answers requests; an ASGI application."""

    def __init__(self, service: ProxyService) -> None:
        self._service = service
        self._counts = service.counts
        self._limiter = service.limiter
        self._replicas = service.replicas
        self._outbox = service.outbox

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive, send)
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
            await self._refuse(request, unavailable("store_unavailable", str(exc)))
        except LightningError as exc:
            await self._refuse(request, Refused(500, "proxy_error", str(exc)))
        except Exception:
            logger.exception("lightning.proxy_request_failed path=%s", request.path)
            await self._refuse(request, Refused(500, "proxy_error", "the proxy failed; its log says why"))

    async def _serve(self, request: Request) -> None:
        try:
            if not self._service.has_keys:
                require_local(request.headers)
            require_same_site(request.method, request.headers)
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
        who = self._service.attribution.identify(request.headers, request.key)
        owner = self._service.attribution.owner(addressed, request.headers, who)
        if owner is not None and self._service.run_id is None:
            owner = None
        elif owner is not None and owner.run_id == self._service.run_id:
            owner = owner._replace(run_id=None)  # as of a caller without a key
        may_manage = who.role >= Role.ALGORITHM and self._service.has_keys
        caller = Caller(owner, who.role, may_manage, addressed.purpose)
        if await serve_control(self._service, request, addressed.path, caller):
            return
        below, is_of_api = split_path(addressed.path)
        if request.method in ("GET", "HEAD") and (below == "/models" or below.startswith("/models/")):
            await self._list_models(request, below.removeprefix("/models").removeprefix("/"))
        else:
            await self._make(await read_call(self._service, request, caller, below, is_of_api=is_of_api))

    async def _make(self, call: Call) -> None:
        """Admit a call, send it, and settle it, whatever happens."""
        scope = CancelScope(call)
        ticket = None if call.owner is None else self._outbox.begin(call.owner, scope.abort)
        started = NOT_COUNTED
        self._counts.calls += 1
        try:
            async with scope:
                try:
                    started = await self._admit(call, scope.abort)
                    await self._send(call)
                finally:
                    self._limiter.release(call)
        except Refused as refused:
            await self._end_refused(call, refused)
        except ClientGone:
            if not call.outcome.is_answered:
                call.outcome.fail("client_disconnected", "the agent hung up before the answer came to its end")
                self._counts.hung_up += call.dialect is not None
        except asyncio.CancelledError:
            call.outcome.fail("proxy_stopped", "the proxy was stopped")
            raise
        except Exception as exc:
            call.outcome.fail(type(exc).__name__, "the proxy failed; its log says why")
            raise
        finally:
            self._settle(call, started, ticket)

    # Admit

    async def _admit(self, call: Call, abort: Abort) -> Started:
        """Return when a call may be sent, with what it has reserved.

        Raises:
            Refused: When it may not be.
        """
        if not call.is_management:
            await self._limiter.acquire(call, abort)
        if call.is_free or not self._service.spending.has_limits:
            return NOT_COUNTED
        is_limited = call.owner is not None and call.purpose is None and self._service.attempts.is_of_agent(call.owner)
        self._limiter.park(call)  # it may have to wait for others to settle
        try:
            started = await self._service.spending.start_call(
                call.owner if is_limited else None, lambda: self._most(call)
            )
        except AttemptLimitReached as exc:
            raise Refused(403, ATTEMPT_LIMIT, str(exc)) from exc
        except BudgetExhausted as exc:
            raise Refused(402, BUDGET_EXHAUSTED, str(exc)) from exc
        try:
            await self._limiter.reacquire(call)
        except BaseException:
            started.settle(tokens=0, usd=0.0)
            raise
        return started

    def _most(self, call: Call) -> Reserve:
        """Return what a call may use at the most; `NOTHING` for one that passes through, as that is not known."""
        route = call.route
        if call.dialect is None or route.fields is None:
            return NOTHING
        limits = (call.dialect.names or {}).get("max_tokens", ("max_tokens",))
        given, taken = self._service.usage.most(route.target, route.fields, route.body, limits)
        if not call.dialect.writes:
            taken = 0
        if not self._service.spending.limits_usd:
            return Reserve(given + taken)
        replicas = self._replicas.of(route.target)
        # The prompt may be written to a cache, which has a price of its own.
        costs = [replica.cost(TokenCounts(given, taken, 0, written)) for replica in replicas for written in (0, given)]
        return Reserve(given + taken, max((cost for cost in costs if cost is not None), default=0.0))

    # Send

    async def _send(self, call: Call) -> None:
        """Send a call, and hand its answer to the agent."""
        response = await self._service.sender.send(call)
        replica, status = response.replica, response.answer.status
        route, outcome = call.route, call.outcome
        is_sound = False
        try:
            await hand_back(call, response, self._replicas, self._service.responses)
            is_sound = True
            _check_tokens(call, response)
        except (BackendBroke, BackendTimeout) as exc:
            refused = refusal_of(exc)
            self._replicas.record_failure(replica, refused.message, is_dead=False)
            raise refused from exc
        except (ClientGone, asyncio.CancelledError):
            is_sound = outcome.is_answered
            raise
        finally:
            if is_sound and status < 500:
                self._replicas.record_success(replica)
            self._replicas.end(replica)
            route.ignored = (*route.ignored, *response.answer.ignored)
            if (versions := response.answer.weight_versions) is not None:
                route.weight_version, route.last_weight_version = map(str, versions)
            try:
                await response.answer.aclose()
            finally:
                outcome.is_refused = status >= 400
                if outcome.is_refused:
                    outcome.cost = 0.0
                elif call.dialect is not None:
                    outcome.cost = _cost(call, *call.known_tokens())

    async def _end_refused(self, call: Call, refused: Refused) -> None:
        """Tell the agent why its call ends, in the form of its API."""
        call.outcome.fail(refused.kind, refused.message)
        request, dialect = call.request, call.dialect
        if dialect is None and request.status:
            raise ClientGone from refused  # there is no way to add an error to this answer
        if dialect is None:
            raise refused
        if request.status == 0:
            call.outcome.status = refused.status
            await self._respond(request, refused, dialect)
            return
        try:
            await request.send_piece(dialect.error_event(refused))
            await request.end_stream()
        except ClientGone:
            self._counts.hung_up += 1

    # Settle

    def _settle(self, call: Call, started: Started, ticket: Ticket | None) -> None:
        """Count what a call used, give back what it had reserved, and have it recorded."""
        call.outcome.seconds = call.seconds()
        if call.route.weight_version is not None and call.route.last_weight_version is None:
            call.route.last_weight_version = self._service.sender.weight_version
        tokens, cost = 0, None
        try:
            tokens, cost = self._used(call)
            self._counts.tokens += tokens
            self._counts.usd += cost or 0.0
            self._counts.failed += call.dialect is not None and call.outcome.error_kind is not None
        except Exception:  # such as a price that a backend cannot say
            logger.exception("lightning.call_not_counted path=%s", call.path)
        finally:
            started.settle(tokens=tokens, usd=cost)
            if ticket is not None:
                # When the event loop has its next turn: in this one it writes the answer.
                asyncio.get_running_loop().call_soon(self._record, ticket, call)

    def _used(self, call: Call) -> tuple[int, float | None]:
        """Return what a call used, in tokens and US dollars; None where its price is not known."""
        route, outcome = call.route, call.outcome
        tokens, cost = 0, outcome.cost
        if not route.is_sent or outcome.is_refused or outcome.error_kind == "backend_redirects":
            cost = 0.0
        elif call.dialect is not None:
            given, taken = call.estimated_tokens()
            tokens = given + taken
            if outcome.error_kind is None and taken:
                self._service.usage.record(route.target, given, taken)
            if cost is None or outcome.error_kind is not None:  # the usage that a broken stream gave is not the last
                cost = _cost(call, given, taken)
        return tokens, cost

    def _record(self, ticket: Ticket, call: Call) -> None:
        if call.dialect is None:
            self._outbox.end(ticket, None)
            return
        try:
            span = span_of(call, self._service.capture)
        except Exception as exc:  # the end of the attempt waits for a span, whatever an answer looks like
            logger.exception("lightning.call_not_recorded rollout_id=%s", ticket.owner.rollout_id)
            span = bare_span_of(call, exc)
        self._outbox.end(ticket, span, len(call.route.body) + call.outcome.size)

    # Answers of the proxy's own

    async def _list_models(self, request: Request, one: str) -> None:
        served = self._replicas.models()
        if one and self._service.models.resolve(one, served) not in served:
            raise Refused(404, "model_not_found", f"no model named {one!r}")
        names = [one] if one else self._service.models.names(served)
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "lightning"} for name in names]
        answer: dict[str, Any] = listed[0] if one else {"object": "list", "data": listed}
        if not one and error_dialect(read_path(request.path).path, request.headers) is GEMINI:
            methods = ["generateContent", "streamGenerateContent"]
            answer = {"models": [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]}
        await request.respond_json(200, answer)

    async def _refuse(self, request: Request, refused: Refused) -> None:
        """Answer a request that is refused, in the form of its API."""
        if request.status == 0:
            await self._respond(request, refused, error_dialect(read_path(request.path).path, request.headers))

    async def _respond(self, request: Request, refused: Refused, dialect: Dialect | None) -> None:
        self._counts.refused += 1
        fields = openai_error(refused) if dialect is None else dialect.error(refused)
        await request.respond(refused.status, dump(fields), refused.headers())


def _check_tokens(call: Call, response: Response) -> None:
    """Log the first answer of a replica that lacks the token ids that it is said to give."""
    replica, outcome = response.replica, call.outcome
    if replica.lacked_tokens or call.owner is None or outcome.error_kind is not None:
        return
    if RETURN_TOKEN_IDS not in response.added or response.answer.status >= 400:  # what is refused is told elsewhere
        return
    answer = outcome.answer
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


def _cost(call: Call, given: int | None, taken: int | None) -> float | None:
    """Return what a call costs with so many tokens; the others are as its answer tells."""
    replica, answer = call.route.replica, call.outcome.answer
    tokens = TokenCounts(given, taken, answer.cached_tokens, answer.written_tokens, answer.written_for_an_hour)
    return None if replica is None else replica.cost(tokens)
