"""The routes, by topic."""

from lightning_http.routes import attempts, bulk, queue, resources, rollouts, runs, service, spans, traces, workers

ALL = (
    queue.routes,
    spans.routes,
    traces.routes,
    attempts.routes,
    rollouts.routes,
    bulk.routes,
    workers.routes,
    resources.routes,
    runs.routes,
    service.routes,
)
