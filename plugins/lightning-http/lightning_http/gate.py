"""Where every request comes in: who asks, what it is about, and what becomes of errors."""

import asyncio
import logging
import time
from collections.abc import MutableMapping
from typing import Any

from lightning_core.errors import AccessDenied
from lightning_http.app import Application
from lightning_http.call import Call, ClientGone, Receive, Send, explain
from lightning_http.messages import HEALTH_PATH, LEASE_HEADER, RUN_HEADER
from lightning_http.service import Service
from lightning_http.web_pages import require_local, require_same_site

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status in the metrics of a request that nobody waited for."""


class Gate:
    """The ASGI application of one server.

    Args:
        service: What all requests share.
        application: The routes.
    """

    def __init__(self, service: Service, application: Application) -> None:
        self._service = service
        self._application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        began = time.perf_counter()
        metrics = self._service.metrics
        metrics.begin()
        call = Call(self._service, scope, receive, send)
        try:
            await self._serve(call)
        except ClientGone:
            call.status = CLIENT_GONE
        except asyncio.CancelledError:
            call.status = CLIENT_GONE
            raise
        except Exception as exc:
            if call.status:  # the answer is on its way, and nothing can be added to it
                raise
            if explain(exc)[0] == 500:
                logger.exception("lightning.store_request_failed path=%s", scope["path"])
            await call.answer_error(exc)
        finally:
            route = scope.get("route")
            metrics.end(
                scope["method"],
                "unknown" if route is None else route.path_format,
                call.status,
                time.perf_counter() - began,
            )

    async def _serve(self, call: Call) -> None:
        if self._service.local_only:
            require_local(call.headers)
        require_same_site(
            call.scope["method"],
            call.headers,
            self._service.cors_allow_origins,
            hint="; allow it with --cors-origin or cors_allow_origins",
        )
        if call.scope["path"] != HEALTH_PATH:
            self._admit(call)
        await self._application.dispatch(call)

    def _admit(self, call: Call) -> None:
        call.identity = self._service.keys.identify(call.headers.get("authorization"), self._service.now())
        asked, own = call.headers.get(RUN_HEADER), call.identity.run_id
        if own is not None and asked not in (None, own):
            raise AccessDenied(f"this key is for an attempt of run {own}; it cannot write to run {asked!r}")
        call.store = self._service.view(own or asked)
        call.extra_headers.append((RUN_HEADER.encode(), call.store.run_id.encode()))
        lease_seconds = call.store.lease_seconds
        if lease_seconds is not None:
            call.extra_headers.append((LEASE_HEADER.encode(), repr(lease_seconds).encode()))
