"""The application: all routes, and the way from a request to its own."""

import functools
import json

from fastapi import FastAPI
from starlette.routing import Match

from lightning_http.auth import Role
from lightning_http.call import Call
from lightning_http.messages import OPENAPI_PATH
from lightning_http.routes import ALL
from lightning_http.routing import CallOf, RawAnswer, Routes, StoreRoute

_ABOUT = """
A store of rollouts, attempts, spans, resources, workers and an algorithm's state.

Everything belongs to a run: the header `x-agl-run` says to which one, else it is the server's own. A request with the
header `x-agl-request-id` can be repeated; it has one effect.
"""


class Application:
    """The routes of a store, the same for all servers of a process."""

    def __init__(self) -> None:
        self.fastapi = FastAPI(
            title="Lightning store", version="1", description=_ABOUT, openapi_url=None, docs_url=None, redoc_url=None
        )
        for routes in (*ALL, self._own()):
            routes.add_to(self.fastapi)
        self._routes = [route for route in self.fastapi.router.routes if isinstance(route, StoreRoute)]
        # A path without parameters is found at once, the others are tried in their order.
        self._by_path = {
            (method, route.path): route
            for route in reversed(self._routes)
            if not route.param_convertors
            for method in route.methods or ()
        }
        self._with_parameters = [route for route in self._routes if route.param_convertors]

    async def dispatch(self, call: Call) -> None:
        """Let the right route answer."""
        scope = call.scope
        route = self._by_path.get((scope["method"], scope["path"]))
        if route is not None:
            scope["route"] = route
            await route.serve(call, {})
            return
        allowed: set[str] = set()
        for route in self._with_parameters:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                scope["route"] = route
                await route.serve(call, child_scope["path_params"])
                return
            if match is Match.PARTIAL:
                allowed |= set(route.methods or ())
        allowed |= {method for method, path in self._by_path if path == scope["path"]}
        if allowed:
            call.extra_headers.append((b"allow", ", ".join(sorted(allowed)).encode()))
            await call.answer(405, _told("UnknownRoute", f"this route takes {', '.join(sorted(allowed))}"))
            return
        await call.answer(404, _told("UnknownRoute", f"this store has no route {scope['path']!r}; see {OPENAPI_PATH}"))

    @functools.cached_property
    def document(self) -> bytes:
        """The OpenAPI document."""
        return json.dumps(self.fastapi.openapi()).encode()

    def _own(self) -> Routes:
        routes = Routes("service")

        @routes.get(OPENAPI_PATH, role=Role.RUNNER, raw=True)
        async def openapi(call: CallOf) -> RawAnswer:
            """Get this document."""
            return self.document, "application/json"

        return routes


@functools.cache
def application() -> Application:
    """Return the application; it is made once in a process."""
    return Application()


def _told(error: str, message: str) -> bytes:
    return json.dumps({"error": error, "message": message, "detail": message}).encode()
