"""How a store's server reads requests and answers them, and the routes that are made of the table of operations."""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Body, Depends, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, WithJsonSchema
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lightning_core.errors import AccessDenied, InvalidRequest, NotFound, StoreUnavailable
from lightning_core.types import AttemptedRollout
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.body import BodyRefused, body_of, media_type_of
from lightning_http.call import Call
from lightning_http.messages import MAX_PAGE, PENDING_HEADER, PREFIX, REQUEST_HEADER, RUN_HEADER
from lightning_http.operations import OPERATIONS, Operation

logger = logging.getLogger(__name__)


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
            role, least = ROLE_NAMES[call.identity.role], ROLE_NAMES[self._role]
            raise AccessDenied(f"a key of {role} cannot do this; it takes one of {least}")
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


# The table

table_routes = make_router()

Bundle = Annotated[
    dict[str, Any],
    Body(),
    WithJsonSchema(
        {
            "type": "object",
            "title": "NamedResources",
            "additionalProperties": {
                "type": "object",
                "required": ["resource_type"],
                "properties": {"resource_type": {"enum": ["llm", "proxy_llm", "prompt_template"]}},
            },
        }
    ),
]
"""What a bundle of resources is, is judged by the store."""


def _add_routes(operation: Operation) -> None:
    about = (inspect.getdoc(operation.function) or "").partition("\n\nArgs:")[0]
    allowed = ", ".join(ROLE_NAMES[role] for role in ROLE_NAMES if role >= operation.role)
    for method, path, name in (
        (operation.method, operation.path, operation.name),
        *([("POST", operation.path + "/search", operation.name.replace("query", "search"))] * operation.is_query),
    ):
        table_routes.add_api_route(
            path,
            _endpoint(operation, method),
            methods=[method],
            name=name,
            operation_id=name,
            summary=about.splitlines()[0].rstrip("."),
            description=f"{about}\n\nFor: {allowed}.",
            status_code=operation.status,
            response_model=operation.documented_answer,
            openapi_extra=headers_of(changes=operation.takes_request_id),
        )


def _endpoint(operation: Operation, method: str) -> Callable[..., Any]:
    async def endpoint(call: Call, request: Request, **given: Any) -> Response:
        body, query = given.pop("body", None), given.pop("query", None)
        if operation.takes_request_id:
            given["request_id"] = request_id_of(request)
        given |= _given_in(query) | ({operation.body: body} if operation.body else _given_in(body))
        headers: dict[str, str] = {}
        result = await _perform(call, operation, given, request, headers)
        return StoreAnswer(result, operation.status, headers)

    annotations: dict[str, Any] = {"call": Annotated[Call, Depends(Permit(operation.role))], "request": Request}
    annotations |= dict.fromkeys(operation.path_names, str)
    defaults: dict[str, Any] = {}
    if operation.body is not None:
        annotations["body"] = Bundle
    if operation.request is not None and (method == "GET" or operation.body is not None):
        annotations["query"] = Annotated[operation.request, Query()]
    elif operation.request is not None:
        annotations["body"] = operation.request
        if not any(field.is_required() for field in operation.request.model_fields.values()):
            annotations["body"], defaults["body"] = operation.request | None, None
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, _KEYWORD, annotation=kind, default=defaults.get(name, inspect.Parameter.empty))
            for name, kind in annotations.items()
        ]
    )
    return endpoint


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _given_in(body: BaseModel | None) -> dict[str, Any]:
    return {} if body is None else {name: getattr(body, name) for name in body.model_fields_set}


async def _perform(
    call: Call, operation: Operation, arguments: dict[str, Any], request: Request, headers: dict[str, str]
) -> Any:
    """Call the store, and return what is answered.

    Args:
        call: Who asks.
        operation: The method.
        arguments: Its arguments, as far as they were given.
        request: The request.
        headers: Takes the headers of the answer.
    """
    end = call.service.draining if operation.claims else call.service.closing
    if operation.claims and end.is_set():
        await _refuse(call, operation)
    if operation.name in _CHECKS:
        _CHECKS[operation.name](call, arguments)
    method, waits = getattr(call.store, operation.name), operation.waits
    if operation.is_query:
        limit = arguments.get("limit", -1)
        result = await method(**{**arguments, "limit": MAX_PAGE if limit == -1 else limit})
        if limit == -1 and result.total > result.offset + len(result.items):
            raise InvalidRequest(
                f"limit is -1, and {result.total} match; a page of this store holds at most {MAX_PAGE}: ask with "
                "limit and offset"
            )
        result.limit = limit
        return result
    poll_seconds = arguments.pop("poll_seconds", None)
    if waits is None or arguments.get(waits, operation.signature.parameters[waits].default) == 0:
        result = await method(**arguments)
    else:
        work = method(**arguments)
        done, result = await call.wait(request, work, end, poll_seconds=poll_seconds)
        if not done and end.is_set():
            await _refuse(call, operation)
        if not done:
            headers[PENDING_HEADER] = "true"
            result = [] if operation.claims else await method(**{**arguments, waits: 0.0})
    if operation.method != "GET":
        call.service.reported.set()
    if result is None and operation.missing:
        (asked,) = operation.path_names
        raise NotFound(f"run {call.store.run_id} has no {operation.missing} {arguments[asked]!r}")
    if operation.claims:
        return await _with_keys(call, result)
    if operation.wrapped_in is None:
        return result
    if operation.returns is type(None):
        return {operation.wrapped_in: arguments.get(operation.wrapped_in, call.store.run_id)}
    return {operation.wrapped_in: result}


async def _refuse(call: Call, operation: Operation) -> NoReturn:
    if operation.claims:
        await call.store.dequeue_many_rollouts(limit=0)  # raises what a worker has to hear once the run has ended
    raise StoreUnavailable("the store is shutting down")


def _only_cancels(call: Call, arguments: Mapping[str, Any]) -> None:
    others = arguments.keys() - {"rollout_id", "request_id"}
    if call.identity.role < Role.ALGORITHM and (others != {"status"} or arguments["status"] != "cancelled"):
        raise AccessDenied("a key of a runner can cancel a rollout; to change it otherwise takes the algorithm's key")


_RESERVED = "lightning."
"""What the names begin with under which the store itself keeps state."""


def _is_not_the_stores(call: Call, arguments: Mapping[str, Any]) -> None:
    name = arguments["name"]
    if name.startswith(_RESERVED):
        raise InvalidRequest(
            f"the name {name!r} begins with {_RESERVED!r}, which is the store's own; take another name"
        )


def _has_worker(call: Call, arguments: Mapping[str, Any]) -> None:
    if arguments.get("worker_id", "") is None:
        raise InvalidRequest("worker_id is null; it is a string, or left out")


def _is_own_attempt(call: Call, arguments: Mapping[str, Any]) -> None:
    attempts = arguments.get("rollout_attempt_ids")
    for ids in [(arguments["rollout_id"], arguments["attempt_id"])] if attempts is None else attempts:
        call.identity.require_attempt(*ids)


_CHECKS: dict[str, Callable[[Call, dict[str, Any]], None]] = {
    "update_rollout": _only_cancels,
    "update_attempt": _has_worker,
    "save_state": _is_not_the_stores,
    "get_next_span_sequence_id": _is_own_attempt,
    "get_many_span_sequence_ids": _is_own_attempt,
}


async def _with_keys(call: Call, claimed: Any) -> Any:
    """Add the key of its attempt to each claimed rollout, where keys are used."""
    if isinstance(claimed, AttemptedRollout):
        return _with_key(call, claimed)
    return [_with_key(call, rollout) for rollout in claimed if await _is_sendable(call, rollout)]


def _with_key(call: Call, rollout: AttemptedRollout) -> Any:
    keys = call.service.keys
    if not keys.required:
        return rollout
    key = keys.mint(call.store.run_id, rollout.rollout_id, rollout.attempt.attempt_id, time.time())
    return {**rollout.__dict__, "attempt_key": key}


async def _is_sendable(call: Call, rollout: AttemptedRollout) -> bool:
    """Whether JSON can hold a rollout. No client can ever execute one that it cannot: its attempt is ended."""
    try:
        wire.encode(rollout)
    except InvalidRequest as exc:
        failure = {"type": "InvalidRequest", "message": f"the rollout has no form in JSON: {exc}"}
        attempt_id = rollout.attempt.attempt_id
        await call.store.update_attempt(rollout.rollout_id, attempt_id, status="failed", metadata={"failure": failure})
        logger.error("lightning.rollout_not_sendable rollout_id=%s reason=%s", rollout.rollout_id, exc)
        return False
    return True


for _operation in OPERATIONS.values():
    _add_routes(_operation)
