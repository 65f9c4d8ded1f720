"""Routes that FastAPI documents, and that are served without its work for each request.

A route is written as in FastAPI: parameters of the path by name, a model for the query or the body, and what it
returns. From these, FastAPI makes the OpenAPI document. A request is read straight from its bytes into the model, and
the answer written straight into bytes.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Query as QueryParameters
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json

from lightning_core.errors import AccessDenied, InvalidRequest
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.call import Call, draining
from lightning_http.messages import REQUEST_HEADER, RUN_HEADER, ErrorAnswer

Endpoint = Callable[..., Any]

_bearer = HTTPBearer(
    auto_error=False, description="A key of this store, where it wants one. A role may do what the lower ones may."
)


async def _documented_only(_: Annotated[Any, Depends(_bearer)]) -> None:
    """Tell the document that a key is sent; it is looked at before the route is."""


CallOf = Annotated[Call, Depends(_documented_only)]
"""The first parameter of every route that needs a key."""

OpenCallOf = Annotated[Call, Depends(lambda: None)]
"""The same for a route that needs none."""

RawAnswer = tuple[bytes, str]
"""What a route returns that makes its answer by itself: the body and its media type."""


@dataclass(frozen=True)
class Declared:
    """A route before it is added to an application."""

    method: str
    path: str
    endpoint: Endpoint
    role: Role
    options: Mapping[str, Any]


class Routes:
    """The routes of one topic, in the order in which they are tried.

    Args:
        tag: The topic, for the document.
        prefix: What all paths begin with.
    """

    def __init__(self, tag: str, prefix: str = "") -> None:
        self._tag = tag
        self._prefix = prefix
        self.declared: list[Declared] = []

    def _add(self, method: str, path: str, *, role: Role = Role.ALGORITHM, **options: Any) -> Callable[..., Endpoint]:
        def declare(endpoint: Endpoint) -> Endpoint:
            options.setdefault("tags", [self._tag])
            self.declared.append(Declared(method, self._prefix + path, endpoint, role, options))
            return endpoint

        return declare

    def get(self, path: str, **options: Any) -> Callable[..., Endpoint]:
        """Declare a route by GET."""
        return self._add("GET", path, **options)

    def post(self, path: str, **options: Any) -> Callable[..., Endpoint]:
        """Declare a route by POST; see `StoreRoute` for the options."""
        return self._add("POST", path, **options)

    def put(self, path: str, **options: Any) -> Callable[..., Endpoint]:
        """Declare a route by PUT."""
        return self._add("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> Callable[..., Endpoint]:
        """Declare a route by DELETE."""
        return self._add("DELETE", path, **options)

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        for route in self.declared:
            app.router.routes.append(
                StoreRoute(
                    route.path,
                    route.endpoint,
                    methods=[route.method],
                    role=route.role,
                    name=route.endpoint.__name__,
                    summary=_title(route.endpoint),
                    **route.options,
                )
            )


class StoreRoute(APIRoute):
    """A documented route with a fast way of its own.

    Args:
        path: The path's template.
        endpoint: What it does.
        role: Who may use it.
        claims: Whether it gives work, which a server that shuts down does not.
        raw: Whether it reads the body and makes the answer by itself.
        read: Reads the body, instead of its model.
        options: FastAPI's.
    """

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        *,
        role: Role,
        claims: bool = False,
        raw: bool = False,
        read: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("responses", {})
        refused, failed = "The request is refused, or wrong.", "The store cannot do it now; 503 may be asked again."
        shared = {4: refused, 5: failed} if role is not Role.ANYBODY else {}
        options["responses"] = {
            **{f"{digit}XX": {"model": ErrorAnswer, "description": text} for digit, text in shared.items()},
            **options["responses"],
        }
        if raw:
            options.setdefault("response_model", None)
        options["operation_id"] = endpoint.__name__
        if role is not Role.ANYBODY:
            options["description"] = f"{inspect.getdoc(endpoint)}\n\nFor: {_roles(role)}."
        extra = options.setdefault("openapi_extra", {})
        extra["parameters"] = _headers(mutates=options["methods"] != ["GET"]) if role is not Role.ANYBODY else []
        super().__init__(path, endpoint, **options)
        self._role = role
        self._claims = claims
        self._raw = raw
        self._status = options.get("status_code") or 200
        self._plan = _Plan(path, endpoint)
        if read is not None and self._plan.body is not None:
            self._plan.body = self._plan.body[0], read
        self.app = self._serve

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        await self.serve(scope["agl.call"], scope.get("path_params", _NONE))

    async def serve(self, call: Call, path_params: Mapping[str, Any]) -> None:
        """Carry out a request and answer it."""
        if call.identity.role < self._role:
            raise AccessDenied(
                f"a key of {_NAMES[call.identity.role]} cannot do this; it takes one of {_NAMES[self._role]}"
            )
        if self._claims and call.service.draining.is_set():
            raise draining()
        if self._raw:
            body, media_type = await self.endpoint(call)
            await call.answer(call.status or self._status, body, media_type)
            return
        arguments = self._plan.of_request(call, path_params)
        if self._plan.body is not None:
            name, read = self._plan.body
            arguments[name] = read(await call.json_body())
        result = await self.endpoint(call, **arguments)
        await call.answer(self._status, wire.encode(result))


class _Plan:
    """How the arguments of an endpoint are made of a request."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        self.path_names: list[str] = []
        self.query: tuple[str, type[BaseModel]] | None = None
        self.body: tuple[str, Callable[[bytes], Any]] | None = None
        hints = get_type_hints(endpoint, include_extras=True)
        for parameter in list(inspect.signature(endpoint).parameters.values())[1:]:
            name, hint = parameter.name, hints[parameter.name]
            if "{" + name in path:
                self.path_names.append(name)
            elif get_origin(hint) is Annotated and isinstance(get_args(hint)[1], type(QueryParameters())):
                self.query = name, get_args(hint)[0]
            else:
                self.body = name, _reader(hint, optional=parameter.default is None)

    def of_request(self, call: Call, path_params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what comes with the path and the query."""
        arguments = {name: path_params[name] for name in self.path_names}
        if self.query is not None:
            name, model = self.query
            arguments[name] = _read_query(model, call.scope.get("query_string", b""))
        return arguments


def _reader(hint: Any, *, optional: bool) -> Callable[[bytes], Any]:
    if hint is Any:
        return _read_anything
    members = [member for member in get_args(hint) if member is not type(None)]
    kind = members[0] if get_origin(hint) is Union or optional else hint
    adapter = TypeAdapter(kind)
    return partial(_read, adapter.validator.validate_json, optional)


def _read(validate: Callable[[bytes], Any], optional: bool, body: bytes) -> Any:
    if optional and body in (b"", b"null"):
        return None
    if not body:
        raise InvalidRequest("the request has no body; it takes one of JSON")
    return validate(body)


def _read_anything(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError as exc:
        raise InvalidRequest(f"the body is no JSON: {exc}") from exc


_MAX_QUERY_FIELDS = 1_000


def _read_query(model: type[BaseModel], query: bytes) -> BaseModel:
    try:
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError as exc:
        raise InvalidRequest(
            f"the query has more than {_MAX_QUERY_FIELDS} values; ask for fewer, or by POST to this route's /search"
        ) from exc
    fields: dict[str, Any] = {name: values if name.endswith("_in") else values[-1] for name, values in given.items()}
    return model.model_validate(fields)


def _title(endpoint: Endpoint) -> str:
    return (inspect.getdoc(endpoint) or endpoint.__name__).splitlines()[0].rstrip(".")


_NONE: Mapping[str, Any] = {}
_HEADER_SCHEMA = {"type": "string", "pattern": "^[!-~]{1,200}$"}
_NAMES = {
    Role.ANYBODY: "anybody",
    Role.ATTEMPT: "an attempt",
    Role.RUNNER: "a runner",
    Role.ALGORITHM: "the algorithm",
}


def _roles(least: Role) -> str:
    return ", ".join(_NAMES[role] for role in Role if role >= least)


def _headers(*, mutates: bool) -> list[dict[str, Any]]:
    about = {RUN_HEADER: "The run that the request is about; without it, the server's own."}
    if mutates:
        about[REQUEST_HEADER] = "Makes a repetition of the request harmless: the same id twice is one effect."
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": _HEADER_SCHEMA}
        for name, text in about.items()
    ]
