"""The routes that are made of the table: a validated request, the store's method, its result as JSON."""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn

from fastapi import Body, Depends, Query
from pydantic import BaseModel, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from lightning_core.errors import AccessDenied, InvalidRequest, NotFound, StoreUnavailable
from lightning_core.types import AttemptedRollout
from lightning_http import wire
from lightning_http.auth import Role
from lightning_http.call import Call
from lightning_http.messages import MAX_PAGE, PENDING_HEADER
from lightning_http.operations import OPERATIONS, Operation
from lightning_http.routing import ROLE_NAMES, Permit, StoreAnswer, headers_of, make_router, request_id_of

logger = logging.getLogger(__name__)

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
    for own in [(arguments["rollout_id"], arguments["attempt_id"])] if attempts is None else attempts:
        call.identity.require_attempt(*own)


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
        own = rollout.attempt.attempt_id
        await call.store.update_attempt(rollout.rollout_id, own, status="failed", metadata={"failure": failure})
        logger.error("lightning.rollout_not_sendable rollout_id=%s reason=%s", rollout.rollout_id, exc)
        return False
    return True


for _operation in OPERATIONS.values():
    _add_routes(_operation)
