"""The server itself: is it there, and how is it doing."""

from starlette.responses import Response

from lightning_http.auth import Role
from lightning_http.messages import HEALTH_PATH, METRICS_PATH, Health
from lightning_http.routing import CallOf, OpenCallOf, RawAnswer, Routes
from lightning_http.service import CONTENT_TYPE

routes = Routes("service")

_TEXT = {200: {"description": "The counts.", "content": {"text/plain": {"schema": {"type": "string"}}}}}


@routes.get(
    HEALTH_PATH,
    role=Role.ANYBODY,
    raw=True,
    response_model=Health,
    responses={503: {"model": Health, "description": "It shuts down."}},
)
async def health(call: OpenCallOf) -> RawAnswer:
    """Say whether the server is there; 503 while it shuts down. Needs no key."""
    if call.service.draining.is_set():
        call.status = 503
        return b'{"status":"draining"}', "application/json"
    return b'{"status":"ok"}', "application/json"


@routes.get(METRICS_PATH, role=Role.RUNNER, raw=True, response_class=Response, responses=_TEXT)
async def metrics(call: CallOf) -> RawAnswer:
    """Count requests and records, for Prometheus."""
    return call.service.metrics.page(await call.service.store.statistics()), CONTENT_TYPE
