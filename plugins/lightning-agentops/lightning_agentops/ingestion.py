"""The part of AgentOps' ingestion API that its SDK needs, with a store behind it.

A program that calls `agentops.init()` is told this address instead of AgentOps' own. Its spans go into the store, by
the same ways as those of any OpenTelemetry exporter. What it prints, which the SDK uploads too, and its metrics are
answered and not kept.
"""

import gzip
import logging
import os
import time
from dataclasses import replace

from lightning_http.auth import Identity, Keys, Role, Unauthorized
from lightning_http.body import BodyRefused, ClientGone, body_of
from lightning_http.call import Call, Limits, Service, answer_error
from lightning_http.listener import Listener, bind
from lightning_http.messages import TRACES_PATH
from lightning_http.traces import keep_traces
from lightning_http.web_pages import require_key, require_local, require_same_site, url_of
from lightning_http.wire import from_any_json
from lightning_proxy.owner import Addressed, read_path
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lightning_core.concurrency import Startable
from lightning_core.errors import InvalidRequest, StoreError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store.base import LightningStore

logger = logging.getLogger(__name__)

TOKEN_PATH = "/v3/auth/token"
METRICS_PATH = "/v1/metrics"
UPLOAD_PATHS = ("/v4/logs/upload/", "/v4/objects/upload/")

_STOP_SECONDS = 5.0
_NO_KEY_TOKEN = "no-key-needed"
_PROTOBUF = "application/x-protobuf"


class AgentOpsServer(Startable):
    """Takes what AgentOps' SDK sends, in the event loop that starts it.

        async with AgentOpsServer(store) as server:
            environment = server.variables(rollout_id, attempt_id, key)

    Which attempt spans belong to is said by the URL, `<url>/rollout/<id>/attempt/<id>`, by the attempt's own key, or by
    the attributes `agentlightning.rollout_id` and `agentlightning.attempt_id` of a span or its resource.

    Args:
        store: Where spans go. It is not closed.
        host: The address to listen on. One that other machines can reach demands a key.
        port: The port; 0 lets the system choose one.
        key: The key of the store, from which those of attempts come; None for the variable `AGL_KEY`, `""` for none.

    Raises:
        ConfigError: When the host demands a key and there is none, or it cannot be one.
    """

    def __init__(
        self, store: LightningStore, host: str = "127.0.0.1", port: int = 0, *, key: str | None = None
    ) -> None:
        key = (os.environ.get(KEY_VARIABLE) if key is None else key) or None
        require_key(host, key, what="the server", give=f"key=, --key or {KEY_VARIABLE}")
        self._service = Service(store, Keys(key), Limits(), local_only=key is None)
        self._app = Starlette(
            routes=[
                Route(TOKEN_PATH, self._token, methods=["POST"]),
                Route(TRACES_PATH, self._traces, methods=["POST"]),
                Route(METRICS_PATH, self._metrics, methods=["POST"]),
                *(Route(path, self._upload, methods=["POST"]) for path in UPLOAD_PATHS),
            ],
            exception_handlers=dict.fromkeys((StoreError, BodyRefused, ClientGone, Exception), _answer_error),
        )
        self._app.router.redirect_slashes = False
        self._host = host
        self._port = port
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """Where programs find it; known once it is started.

        Raises:
            StoreError: When the system is to choose the port, and has not yet.
        """
        if self._port == 0:
            raise StoreError("the port is not chosen yet; start the server first")
        return url_of(self._host, self._port)

    def variables(self, rollout_id: str, attempt_id: str, key: str | None = None) -> dict[str, str]:
        """Return the environment of a program whose spans belong to an attempt.

        Args:
            rollout_id: Its rollout.
            attempt_id: The attempt.
            key: The attempt's key; None where no keys are needed.
        """
        url = f"{self.url}/rollout/{rollout_id}/attempt/{attempt_id}"
        return {
            "AGENTOPS_API_ENDPOINT": url,
            "AGENTOPS_EXPORTER_ENDPOINT": url + TRACES_PATH,
            "AGENTOPS_API_KEY": key or _NO_KEY_TOKEN,
        }

    async def start(self) -> None:
        """Listen; return when requests are answered.

        Raises:
            ConfigError: When the port cannot be had.
            StoreError: When the server runs already.
        """
        if self._listener is not None:
            raise StoreError(f"this server runs already, at {self.url}")
        bound = bind(self._host, self._port)
        port = bound.getsockname()[1]
        self._listener = Listener(self, bound)
        await self._listener.open()
        self._port = port

    async def stop(self) -> None:
        """Answer what is under way, and stop. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close(seconds=_STOP_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        try:
            if scope["type"] == "http":
                scope = self._addressed(scope)
            await self._app(scope, receive, send)
        except StoreError as exc:
            await answer_error(exc)(scope, receive, send)
        except Exception:  # it is answered, as far as it can be
            logger.exception("lightning.agentops_request_failed path=%s", scope["path"])

    def _addressed(self, scope: Scope) -> Scope:
        """Return the request as it is below the URL of its attempt."""
        headers = Headers(scope=scope)
        addressed = read_path(scope.get("raw_path", scope["path"].encode()).decode("latin-1"))
        if self._service.local_only:
            require_local(headers)
        require_same_site(scope["method"], headers)
        return {**scope, "path": addressed.path, "state": {"addressed": addressed}}

    def _caller(self, request: Request) -> Call:
        call = Call.identified(self._service, request.headers)
        addressed: Addressed = request.state.addressed
        rollout_id, attempt_id = addressed.rollout_id, addressed.attempt_id
        if not rollout_id or not attempt_id:
            return call
        call.identity.require_attempt(rollout_id, attempt_id)
        return replace(call, identity=Identity(Role.ATTEMPT, call.identity.run_id, rollout_id, attempt_id))

    async def _token(self, request: Request) -> Response:
        """Give a token for a key: the key itself, so that it is looked at again with everything that is sent."""
        try:
            key = from_any_json(await self._body(request))["api_key"]
        except (ValueError, KeyError, TypeError) as exc:
            raise InvalidRequest('the body is {"api_key": "..."}, as JSON') from exc
        try:
            self._service.keys.identify(f"Bearer {key}", time.time())
        except Unauthorized as exc:
            raise Unauthorized(f"{exc}; AGENTOPS_API_KEY is the key of the attempt, or of the store") from exc
        token = key if self._service.keys.required else _NO_KEY_TOKEN
        project = {"token": token, "project_id": self._service.store.run_id, "project_prem_status": "pro"}
        return JSONResponse(project)

    async def _traces(self, request: Request) -> Response:
        answer = await keep_traces(request, self._caller(request))
        _log_rejected(answer)
        return answer

    # The SDK sends these before it has its token, or without it. They are dropped, so that any caller may send them.

    async def _metrics(self, request: Request) -> Response:
        await self._body(request)
        return Response(b"", media_type=_PROTOBUF)

    async def _upload(self, request: Request) -> Response:
        return JSONResponse({"url": "", "size": len(await self._body(request))})

    async def _body(self, request: Request) -> bytes:
        return await body_of(request, self._service.limits.max_body_bytes)


def _log_rejected(answer: Response) -> None:
    """Say which spans were not kept: the SDK, which hears of it, says nothing."""
    if answer.media_type != _PROTOBUF or not answer.body or answer.status_code != 200:
        return
    body = bytes(answer.body)
    plain = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    told = ExportTraceServiceResponse.FromString(plain).partial_success
    if told.rejected_spans:
        logger.warning(
            "lightning.agentops_spans_rejected spans=%d cause=%s; give the program the URL or the key of its attempt",
            told.rejected_spans,
            told.error_message,
        )


async def _answer_error(request: Request, exc: Exception) -> Response:
    return answer_error(exc)
