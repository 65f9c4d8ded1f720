"""What the routes of a store's server share: how a body is read, who may ask, what is answered."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lightning_core.errors import AccessDenied, InvalidRequest
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.body import BodyRefused, body_of, media_type_of
from lightning_http.call import Call
from lightning_http.messages import PREFIX, REQUEST_HEADER, RUN_HEADER


async def read_json_body(request: Request) -> bytes:
    """Return a body that is to be JSON, packed with gzip or not, and no larger than the server takes.

    Raises:
        BodyRefused: When it is too large, of another type, or badly packed.
    """
    body = await body_of(request, request.state.service.limits.max_body_bytes)
    if body and media_type_of(request) != "application/json":  # a page in a browser can send that unasked
        raise BodyRefused(415, f"Content-Type is {media_type_of(request)!r}; this store takes 'application/json'")
    return body


def serve(documented: APIRoute) -> Route:
    """Return the route that serves what FastAPI documents."""
    return Route(documented.path, _Endpoint(documented), methods=documented.methods, name=documented.name)


class _Endpoint:
    """Answers the requests of a route.

    FastAPI's own handler solves the dependencies of each request anew, which takes longer than most methods of a store.
    An endpoint has these parameters, as it needs them: `call`, `request`, those of the path, and `body` or `query`.
    """

    def __init__(self, documented: APIRoute) -> None:
        parameters = inspect.signature(documented.endpoint).parameters
        self._documented = documented
        self._permits = [each.call for each in documented.dependant.dependencies if isinstance(each.call, Permit)]
        self._read_body, self._read_query = (_reader(parameters.get(name)) for name in ("body", "query"))
        self._takes_request = "request" in parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        scope["route"] = self._documented  # older versions of Starlette leave that to FastAPI
        given: dict[str, Any] = {**request.path_params}
        for permit in self._permits:  # before the body: with a key that is not good for the route nothing is read
            given["call"] = permit(request)
        if self._takes_request:
            given["request"] = request
        if self._read_body is not None:
            body = await read_json_body(request)
            given["body"] = self._read_body(body or None)
        if self._read_query is not None:
            given["query"] = self._read_query(_fields_of(request.query_params))
        response: Response = await self._documented.endpoint(**given)
        await response(scope, receive, send)


def _reader(parameter: inspect.Parameter | None) -> Callable[[Any], Any] | None:
    """Return what makes a parameter's value: of a body's JSON, of a query's texts, or of None for neither."""
    if parameter is None:
        return None
    place = parameter.name
    adapter: TypeAdapter[Any] = TypeAdapter(parameter.annotation)

    def read(value: Any) -> Any:
        if value is None and parameter.default is parameter.empty:
            raise RequestValidationError([{"type": "missing", "loc": (place,), "msg": "Field required", "input": None}])
        try:
            if isinstance(value, bytes):
                return adapter.validate_json(value, strict=True)  # true and "1" are not numbers
            return adapter.validate_python(value)
        except ValidationError as exc:
            if exc.errors()[0]["type"] == "json_invalid":
                raise InvalidRequest(f"the body is not JSON: {exc.errors()[0]['ctx']['error']}") from exc
            raise RequestValidationError(wire.faults_of(exc, place)) from exc

    return read


def _fields_of(query: QueryParams) -> dict[str, Any]:
    """Return the values of a query; those of names with `_in` are lists."""
    return {name: query.getlist(name) if name.endswith("_in") else query[name] for name in query}


class StoreAnswer(JSONResponse):
    """JSON, with NaN and the infinities where there are some."""

    def render(self, content: Any) -> bytes:
        return wire.encode(content)


# Who may ask

ROLE_NAMES = {Role.ATTEMPT: "an attempt", Role.RUNNER: "a runner", Role.ALGORITHM: "the algorithm"}


class Permit(HTTPBearer):
    """The dependency that gives the `Call` of a request, if its key is good for a role."""

    def __init__(self, role: Role) -> None:
        about = "A key of this store. A role may do what the lower ones may."
        super().__init__(scheme_name="HTTPBearer", description=about)
        self._role = role

    def __call__(self, request: HTTPConnection) -> Any:
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
    schemas = {
        RUN_HEADER: {"type": "string", "pattern": "^[!-~]{1,200}$"},
        REQUEST_HEADER: {"type": "string", "maxLength": 200},
    }
    return {
        "parameters": [
            {"name": name, "in": "header", "required": False, "description": text, "schema": schemas[name]}
            for name, text in about.items()
        ]
    }


class ErrorAnswer(BaseModel):
    """What every answer that is an error says."""

    error: str = Field(description="The type of the error, such as `NotFound` or `InvalidTransition`.")
    message: str = Field(description="What, which, got, what next.")
    detail: Any = Field(description="The message; for a body that is wrong, the list of its faults with their places.")


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorAnswer,
        "description": "The request is refused, or wrong; 401 without a key of this store, 403 where it may not do it.",
    },
    "5XX": {"model": ErrorAnswer, "description": "The store cannot do it now; 503 may be asked again."},
}


def make_router() -> APIRouter:
    """Return a router for routes below the prefix."""
    return APIRouter(prefix=PREFIX, responses=ERRORS)
