"""The server itself: is it there, and how is it doing."""

from lightning_core.store.http.auth import Role
from lightning_core.store.http.messages import Health
from lightning_core.store.http.metrics import CONTENT_TYPE
from lightning_core.store.http.protocol import HEALTH_PATH, METRICS_PATH
from lightning_core.store.http.routing import CallOf, RawAnswer, Routes

routes = Routes("service")


@routes.get(HEALTH_PATH, role=Role.ANYBODY, raw=True, response_model=Health)
async def health(call: CallOf) -> RawAnswer:
    """Say whether the server is there; 503 while it shuts down. Needs no key."""
    if call.service.draining.is_set():
        call.status = 503
        return b'{"status":"draining"}', "application/json"
    return b'{"status":"ok"}', "application/json"


@routes.get(METRICS_PATH, role=Role.RUNNER, raw=True)
async def metrics(call: CallOf) -> RawAnswer:
    """Count requests and records, for Prometheus."""
    return call.service.metrics.page(await call.service.store.statistics()), CONTENT_TYPE
