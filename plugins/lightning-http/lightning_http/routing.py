"""What the routes of a store's server share: how a body is read, who may ask, what is answered."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from pydantic_core import from_json
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from lightning_core.errors import AccessDenied, InvalidRequest
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.body import BodyRefused, body_of, media_type_of
from lightning_http.call import Call
from lightning_http.messages import PREFIX, REQUEST_HEADER, RUN_HEADER


class StoreRequest(Request):
    """A request whose body is JSON, packed with gzip or not, and no larger than the server takes."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            body = await body_of(self, self.state.service.limits.max_body_bytes)
            if body and media_type_of(self) != "application/json":  # a page in a browser can send that unasked
                raise BodyRefused(415, f"Content-Type is {media_type_of(self)!r}; this store takes 'application/json'")
            self._body = body
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            try:
                self._json = from_json(await self.body())
            except ValueError as exc:
                raise InvalidRequest(f"the body is not JSON: {exc}") from exc
        return self._json


class StoreRoute(APIRoute):
    """A route that reads its body as a `StoreRequest`, before FastAPI does: that answers every error in it with 400."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        permits = [each.call for each in self.dependant.dependencies if isinstance(each.call, Permit)]

        async def read_first(request: Request) -> Response:
            request = StoreRequest(request.scope, request.receive)
            for permit in permits:  # whose key is not good for the route has nothing read
                await permit(request)
            if self.body_field is not None and await request.body():
                await request.json()
            return await handle(request)

        return read_first


class StoreAnswer(JSONResponse):
    """JSON, with NaN and the infinities where there are some."""

    def render(self, content: Any) -> bytes:
        return wire.encode(content)


# Who may ask

ROLE_NAMES = {Role.ATTEMPT: "an attempt", Role.RUNNER: "a runner", Role.ALGORITHM: "the algorithm"}


class Permit(HTTPBearer):
    """The dependency that gives the `Call` of a request, if its key is good for a role."""

    def __init__(self, role: Role) -> None:
        about = "A key of this store, where it wants one. A role may do what the lower ones may."
        super().__init__(scheme_name="HTTPBearer", description=about)
        self._role = role

    async def __call__(self, request: HTTPConnection) -> Any:
        call: Call = request.state.call
        if call.identity.role < self._role:
            own, least = ROLE_NAMES[call.identity.role], ROLE_NAMES[self._role]
            raise AccessDenied(f"a key of {own} cannot do this; it takes one of {least}")
        return call


ByAttempt = Annotated[Call, Depends(Permit(Role.ATTEMPT))]
ByRunner = Annotated[Call, Depends(Permit(Role.RUNNER))]


def request_id_of(request: Request) -> str | None:
    """Return the id under which a repetition of a request is harmless, if it has one.

    Raises:
        InvalidRequest: When it is longer than a store keeps.
    """
    given = request.headers.get(REQUEST_HEADER)
    if given is not None and len(given) > 200:
        raise InvalidRequest(f"the header {REQUEST_HEADER} has {len(given)} characters; it has at most 200")
    return given or None


def headers_of(*, changes: bool) -> dict[str, Any]:
    """Return what the document says of a route's headers."""
    about = {RUN_HEADER: "The run that the request is about; without it, the server's own."}
    if changes:
        about[REQUEST_HEADER] = "Makes a repetition of the request harmless: the same id twice is one effect."
    schema = {"type": "string", "pattern": "^[!-~]{1,200}$"}
    return {
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
            for name, text in about.items()
        ]
    }


class ErrorAnswer(BaseModel):
    """What every answer that is an error says."""

    error: str = Field(description="The type of the error, such as `NotFound` or `InvalidTransition`.")
    message: str = Field(description="What, which, got, what next.")
    detail: Any = Field(description="The message; for a body that is wrong, the list of its faults with their places.")


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request is refused, or wrong."},
    "5XX": {"model": ErrorAnswer, "description": "The store cannot do it now; 503 may be asked again."},
}


def make_router() -> APIRouter:
    """Return a router for routes below the prefix, whose bodies are JSON."""
    return APIRouter(prefix=PREFIX, route_class=StoreRoute, responses=ERRORS)
