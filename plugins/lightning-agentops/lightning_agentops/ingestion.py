"""The part of AgentOps' ingestion API that its SDK needs, with a store behind it.

A program that calls `agentops.init()` is told this address instead of AgentOps' own. Its spans go into the store, by
the same ways as those of any OpenTelemetry exporter. What it prints, which the SDK uploads too, and its metrics are
answered and not kept.
"""

import gzip
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from lightning_http.auth import Identity, Keys, Role, Unauthorized
from lightning_http.call import Call, ClientGone, Receive, Send, explain
from lightning_http.listener import Listener, bind
from lightning_http.loopback import is_loopback
from lightning_http.messages import RUN_HEADER, TRACES_PATH
from lightning_http.routes.traces import export_traces
from lightning_http.service import Limits, Service
from lightning_http.web_pages import require_local, require_same_site
from lightning_proxy.owner import ATTEMPT_HEADER, ROLLOUT_HEADER, Addressed, read_path
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from lightning_core.errors import AccessDenied, ConfigError, InvalidRequest, StoreError
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store.base import LightningStore

logger = logging.getLogger(__name__)

TOKEN_PATH = "/v3/auth/token"
METRICS_PATH = "/v1/metrics"
UPLOAD_PATHS = ("/v4/logs/upload/", "/v4/objects/upload/")
HEALTH_PATH = "/health"

_STOP_SECONDS = 5.0
_NO_KEY_TOKEN = "no-key-needed"
_PROTOBUF = "application/x-protobuf"

Answer = Callable[[Call], Awaitable[None]]


class AgentOpsServer:
    """Takes what AgentOps' SDK sends, in the event loop that starts it.

        async with AgentOpsServer(store) as server:
            environment = server.variables(rollout_id, attempt_id, key)

    Which attempt spans belong to is said by the URL, `<url>/rollout/<id>/attempt/<id>`, by the attempt's own key, by
    the headers `x-rollout-id` and `x-attempt-id`, or by the attributes `agentlightning.rollout_id` and
    `agentlightning.attempt_id` of a span or its resource.

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
        if key is None and not is_loopback(host):
            raise ConfigError(
                f"host {host} can be reached from other machines, so a key is needed: give key=, --key or "
                f"{KEY_VARIABLE}, or serve on 127.0.0.1"
            )
        self._service = Service(store, Keys(key), Limits(), local_only=key is None)
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
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._host, self._host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

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
        """Answer what is under way, and stop. Twice is one effect."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close(seconds=_STOP_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        call = Call(self._service, scope, receive, send)
        try:
            await self._serve(call, read_path(scope.get("raw_path", scope["path"].encode()).decode("latin-1")))
        except ClientGone:
            return
        except Exception as exc:
            if call.status:  # the answer is on its way, and nothing can be added to it
                raise
            if explain(exc)[0] == 500:
                logger.exception("lightning.agentops_request_failed path=%s", scope["path"])
            await call.answer_error(exc)

    async def _serve(self, call: Call, addressed: Addressed) -> None:
        if self._service.local_only:
            require_local(call.headers)
        require_same_site(call.scope["method"], call.headers)
        path, method = addressed.path, call.scope["method"]
        if path == HEALTH_PATH:
            await call.answer(200, b'{"status":"ok"}')
            return
        answers: dict[str, Answer] = {TOKEN_PATH: self._token, TRACES_PATH: self._traces, METRICS_PATH: self._metrics}
        answer = self._upload if path in UPLOAD_PATHS else answers.get(path)
        if answer is None:
            await call.answer(404, _told(f"there is no {path!r} here; this is the ingestion API of AgentOps"))
        elif method != "POST":
            call.extra_headers.append((b"allow", b"POST"))
            await call.answer(405, _told("this takes POST"))
        else:
            if answer == self._traces:
                self._admit(call, addressed)
            await answer(call)

    def _admit(self, call: Call, addressed: Addressed) -> None:
        who = self._service.keys.identify(call.headers.get("authorization"), time.time())
        asked = call.headers.get(RUN_HEADER)
        if who.run_id is not None and asked not in (None, who.run_id):
            raise AccessDenied(f"this key is for an attempt of run {who.run_id}; it cannot write to run {asked!r}")
        call.store = self._service.view(who.run_id or asked)
        rollout_id, attempt_id = addressed.rollout_id, addressed.attempt_id
        if rollout_id is None or attempt_id is None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.scope["headers"]}
            rollout_id, attempt_id = headers.get(ROLLOUT_HEADER), headers.get(ATTEMPT_HEADER)
        if rollout_id and attempt_id:
            who.require_attempt(rollout_id, attempt_id)
            who = Identity(Role.ATTEMPT, who.run_id, rollout_id, attempt_id)
        call.identity = who

    async def _token(self, call: Call) -> None:
        """Give a token for a key: the key itself, so that it is looked at again with everything that is sent."""
        try:
            key = json.loads(await call.body())["api_key"]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise InvalidRequest('the body is {"api_key": "..."}, as JSON') from exc
        if not isinstance(key, str):
            raise InvalidRequest('the body is {"api_key": "..."}, as JSON')
        try:
            self._service.keys.identify(f"Bearer {key}", time.time())
        except Unauthorized as exc:
            raise Unauthorized(f"{exc}; AGENTOPS_API_KEY is the key of the attempt, or of the store") from exc
        token = key if self._service.keys.required else _NO_KEY_TOKEN
        project = {"token": token, "project_id": self._service.store.run_id, "project_prem_status": "pro"}
        await call.answer(200, json.dumps(project).encode())

    async def _traces(self, call: Call) -> None:
        body, media_type = await export_traces(call)
        _log_rejected(call, body, media_type)
        await call.answer(call.status or 200, body, media_type)

    # The SDK sends these before it has its token, or without it. They are dropped, so that nobody needs to be known.

    async def _metrics(self, call: Call) -> None:
        await call.body()
        await call.answer(200, b"", _PROTOBUF)

    async def _upload(self, call: Call) -> None:
        size = len(await call.body())
        await call.answer(200, json.dumps({"url": "", "size": size}).encode())


def _log_rejected(call: Call, body: bytes, media_type: str) -> None:
    """Say which spans were not kept: the SDK that is told so says nothing."""
    if media_type != _PROTOBUF or not body or (call.status and call.status != 200):
        return
    plain = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    told = ExportTraceServiceResponse.FromString(plain).partial_success
    if told.rejected_spans:
        logger.warning(
            "lightning.agentops_spans_rejected spans=%d cause=%s; give the program the URL or the key of its attempt",
            told.rejected_spans,
            told.error_message,
        )


def _told(message: str) -> bytes:
    return json.dumps({"error": message}).encode()
