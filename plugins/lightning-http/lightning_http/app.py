"""The application of a store's server, and the routes that are not of the table."""

import functools
import logging
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Router

from lightning_core.errors import InvalidRequest, RegistryError
from lightning_core.registry import default_registry
from lightning_core.types import Span
from lightning_http.auth import Role
from lightning_http.messages import HEALTH_PATH, METRICS_PATH, OPENAPI_PATH, PROMETHEUS_PATH, TRACES_PATH
from lightning_http.routes import (
    ERRORS,
    ByAttempt,
    ByRunner,
    StoreAnswer,
    make_router,
    read_json_body,
    serve,
    table_routes,
)
from lightning_http.traces import ANSWERS, REQUEST, keep_traces
from lightning_http.wire import from_any_json

logger = logging.getLogger(__name__)

_ABOUT = """
A store of rollouts, attempts, spans, resources, workers and an algorithm's state.

Everything belongs to a run: the header `x-agl-run` says to which one, else it is the server's own. A request with the
header `x-agl-request-id` can be repeated; it has one effect.
"""


store_routes = make_router()
other_routes = APIRouter(responses=ERRORS)

# Spans


class SpansRequest(BaseModel):
    """Spans of one attempt, or of many."""

    spans: list[Span]


M = TypeVar("M", bound=BaseModel)


def read_spans(model: type[M], body: bytes) -> M:
    """Read a body of spans. Texts in it are mended, as those of a span that is made here.

    Raises:
        ValidationError: As the model has it.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as exc:
        if exc.errors(include_input=False)[0]["type"] != "json_invalid":
            raise
        try:
            value = from_any_json(body)
        except ValueError:
            raise exc from None
    return model.model_validate(value)


_PLACE = "#/components/schemas/{model}-Input"
_SPANS_SCHEMA = SpansRequest.model_json_schema(ref_template=_PLACE)
_SPANS, _SPAN = (
    {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    for schema in (_SPANS_SCHEMA, {"$ref": _PLACE.format(model="Span")})
)
_PARTS = {f"{name}-Input": schema for name, schema in _SPANS_SCHEMA.pop("$defs").items()}


class SequenceIds(BaseModel):
    """A sequence id for each span, in the order of the request; null for a span that was there already."""

    sequence_ids: list[int | None]


@store_routes.post("/spans/bulk", status_code=201, response_model=SequenceIds, openapi_extra=_SPANS)
async def add_spans(call: ByAttempt, request: Request) -> Response:
    """Keep spans; none of them when an attempt is unknown."""
    spans = read_spans(SpansRequest, await read_json_body(request)).spans
    if call.identity.role is Role.ATTEMPT:
        for span in spans:
            call.identity.require_attempt(span.rollout_id, span.attempt_id)
    stored = await call.store.add_many_spans(call.identity.mark(spans))
    numbers = {_identity(span): span.sequence_id for span in stored}
    # One that is sent twice in a request is stored once.
    return StoreAnswer({"sequence_ids": [numbers.pop(_identity(span), None) for span in spans]}, 201)


def _identity(span: Span) -> tuple[str, str, str]:
    return span.span_id, span.attempt_id, span.rollout_id


@store_routes.post("/spans", status_code=201, response_model=Span | None, openapi_extra=_SPAN)
async def add_span(call: ByAttempt, request: Request) -> Response:
    """Keep a span; null when the attempt already has one of this id."""
    body = await read_json_body(request)
    if not body:
        raise InvalidRequest("the request has no body; it takes a span")
    span = read_spans(Span, body)
    call.identity.require_attempt(span.rollout_id, span.attempt_id)
    (marked,) = call.identity.mark([span])
    return StoreAnswer(await call.store.add_span(marked), 201)


# The server


@store_routes.get("/run", response_model=dict[str, str])
async def get_run(call: ByRunner) -> Response:
    """Say which run the request is about."""
    return StoreAnswer({"run_id": call.store.run_id})


class Health(BaseModel):
    """`ok`, or, with status 503, `draining`."""

    status: str


async def health(request: Request) -> Response:
    """Say whether the server is there; 503 while it shuts down. Needs no key."""
    is_draining = request.state.service.draining.is_set()
    return JSONResponse({"status": "draining" if is_draining else "ok"}, 503 if is_draining else 200)


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The counts.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@other_routes.get(METRICS_PATH, response_class=Response, responses=_TEXT)
async def metrics(call: ByRunner) -> Response:
    """Say what was counted and how the store stands, for Prometheus."""
    page = await call.service.metrics.page(call.service.store)
    return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})


for _path in (PROMETHEUS_PATH, f"{PROMETHEUS_PATH}/"):
    other_routes.add_api_route(_path, metrics, include_in_schema=False)


@other_routes.get(OPENAPI_PATH, response_model=None)
async def openapi(call: ByRunner) -> Response:
    """Get this document."""
    return JSONResponse(document())


@other_routes.post(TRACES_PATH, response_class=Response, openapi_extra=REQUEST, responses=ANSWERS)
async def export_traces(call: ByAttempt, request: Request) -> Response:
    """Keep spans that OpenTelemetry exports.

    Which attempt a span belongs to is said by the attributes `agentlightning.rollout_id` and
    `agentlightning.attempt_id` of the span or of its resource; with the key of an attempt, it is that one. Spans that
    cannot be kept are counted in the answer, as the protocol has it.
    """
    return await keep_traces(request, call)


def _pages() -> list[BaseRoute]:
    """Return the routes of installed plugins for people who look into the store.

    A component of the kind `pages` is a function that returns Starlette routes. They are behind the same keys as the
    store's own, but for the page `/`, and find the caller and the store in `request.state.call`.
    """
    registry, routes = default_registry(), list[BaseRoute]()
    for component in registry.components("pages"):
        try:
            routes += registry.load_component(component)()
        except RegistryError as exc:  # a plugin that is broken does not stop the store
            logger.warning("lightning.pages_not_served name=%s: %s", component.name, exc)
    return routes


@functools.cache
def application() -> Router:
    """Return the routes, the same for all servers of a process; see `Gate`, which answers what they raise."""
    return Router(
        [*(serve(route) for route in documented().routes if isinstance(route, APIRoute)), *_pages()],
        redirect_slashes=False,
    )


@functools.cache
def documented() -> FastAPI:
    """Return the routes, of which FastAPI makes the document, and nothing else: Starlette alone serves them."""
    app = FastAPI(title="Lightning store", version="1", description=_ABOUT, openapi_url=None)
    app.get(
        HEALTH_PATH,
        response_model=Health,
        responses={503: {"model": Health, "description": "It shuts down."}, "4XX": ERRORS["4XX"]},
    )(health)
    app.router.routes += [*store_routes.routes, *table_routes.routes, *other_routes.routes]
    for route in app.routes:
        if isinstance(route, APIRoute):
            route.operation_id = route.name
    return app


@functools.cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document. A server without a key takes its requests without one, too."""
    spec = documented().openapi()
    spec["components"]["schemas"] |= _PARTS
    return spec
