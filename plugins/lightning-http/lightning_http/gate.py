"""The middleware of a store's server: who asks, about which run; counted, whatever the result."""

import asyncio
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_core.errors import StoreError
from lightning_http.call import CLIENT_GONE, Call, answer_error
from lightning_http.messages import LEASE_HEADER, OPEN_PATHS, RUN_HEADER
from lightning_http.service import Service
from lightning_http.web_pages import require_local, require_same_site

logger = logging.getLogger(__name__)

EVENT_STREAM = b"text/event-stream"


class Gate:
    """Lets only requests in that may come, with the `Call` in their state.

    Args:
        service: What all requests share.
        app: The application, which may be that of many servers.
    """

    def __init__(self, service: Service, app: ASGIApp) -> None:
        self._service = service
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, added = time.perf_counter(), CLIENT_GONE, list[tuple[bytes, bytes]]()
        is_counted = False

        async def count() -> None:
            nonlocal is_counted
            if not is_counted:
                is_counted = True
                route = getattr(scope.get("route"), "path_format", "unknown")
                await self._service.metrics.end(scope["method"], route, status, time.perf_counter() - began)

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                message["headers"] = [*headers, *added]
                if any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in headers):
                    await count()  # it is answered, and then stays open for as long as its client wants
            await send(message)

        self._service.metrics.begin()
        try:
            added += self._admit(scope)
            await self._app(scope, receive, counted_send)
        except StoreError as exc:
            await answer_error(exc)(scope, receive, counted_send)
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        except Exception:  # it is answered, as far as it can be
            logger.exception("lightning.store_request_failed path=%s", scope["path"])
        finally:
            await count()

    def _admit(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Let the request in; return the headers of its answer."""
        # As a dict, because most of those that are asked for are not there. Of two of a name, the first counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        if self._service.local_only:
            require_local(headers)
        require_same_site(
            scope["method"],
            headers,
            self._service.cors_allow_origins,
            hint="; allow it with --cors-origin or cors_allow_origins",
        )
        state: dict[str, Any] = {"service": self._service}
        scope["state"] = state
        if scope["path"] in OPEN_PATHS:
            return []
        call = state["call"] = Call.identified(self._service, headers)
        lease_seconds = call.store.lease_seconds
        lease = [] if lease_seconds is None else [(LEASE_HEADER.encode(), b"%r" % lease_seconds)]
        return [(RUN_HEADER.encode(), call.store.run_id.encode()), *lease]
