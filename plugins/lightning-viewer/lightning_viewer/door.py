"""The application of `agl ui`: the live page behind the same checks as a store's server."""

import time

from lightning_http.auth import Keys
from lightning_http.call import answer_error
from lightning_http.messages import OPEN_PATHS
from lightning_http.web_pages import require_local, require_same_site
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lightning_core.errors import StoreError
from lightning_viewer.live import Live
from lightning_viewer.routes import live_routes


class Door:
    """Serves the page of one run.

    Args:
        live: The run.
        keys: Who may look and act; without a key everybody on this machine.
    """

    def __init__(self, live: Live, keys: Keys) -> None:
        self._keys = keys
        self._app = Starlette(
            routes=live_routes(lambda request: live, lambda request: None),
            exception_handlers={Exception: _answer, StoreError: _answer},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        try:
            if not self._keys.required:
                require_local(headers)
            require_same_site(scope["method"], headers)
            if scope["path"] not in OPEN_PATHS:
                self._keys.identify(headers.get("authorization"), time.time())
        except StoreError as exc:
            await answer_error(exc)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _answer(request: Request, exc: Exception) -> Response:
    return answer_error(exc)
