"""What server and client agree on: paths, headers, limits, and the statuses of errors."""

from typing import Final

from lightning_core.errors import (
    AccessDenied,
    InvalidRequest,
    InvalidTransition,
    NotFound,
    RunEnded,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

PREFIX: Final = "/v1/agl"
"""Where the store's routes are, as in agentlightning 0.3."""

DEFAULT_PORT: Final = 4747
"""The port of agentlightning 0.3's store."""

TRACES_PATH: Final = "/v1/traces"
"""Where OpenTelemetry's exporters send spans."""

METRICS_PATH: Final = "/metrics"

PROMETHEUS_PATH: Final = "/v1/prometheus"
"""The same page, where agentlightning 0.3 has it."""

OPENAPI_PATH: Final = "/openapi.json"

HEALTH_PATH: Final = PREFIX + "/health"

PAGE_PATH: Final = "/"
"""The page for people, where a plugin has one. It holds no data."""

OPEN_PATHS: Final = frozenset({HEALTH_PATH, PAGE_PATH})
"""The routes that need no key."""

MAX_ENQUEUED: Final = 10_000
"""How many rollouts one request may enqueue."""

MAX_CLAIMED: Final = 1_000
"""How many rollouts one request may claim."""

MAX_PAGE: Final = 10_000
"""The most records in one answer to a query."""

RUN_HEADER: Final = "x-agl-run"
"""Of a request: the run that it is about; without it, the server's own. Of an answer: which run that was."""

LEASE_HEADER: Final = "x-agl-lease-seconds"
"""Of an answer: how long a worker that sends heartbeats may be silent."""

REQUEST_HEADER: Final = "x-agl-request-id"
"""Makes a request idempotent: the same id again has no further effect."""

PENDING_HEADER: Final = "x-agl-pending"
"""`true` on the answer to a wait that was cut short: nothing is decided yet, ask again."""

STATUS_OF: Final[dict[type[StoreError], int]] = {
    AccessDenied: 403,
    NotFound: 404,
    InvalidTransition: 409,
    RunEnded: 409,
    InvalidRequest: 400,
    StoreFull: 507,
    StoreClosed: 503,
    StoreUnavailable: 503,
    StoreError: 500,
}
"""The status of each error, for the first of its types that stands here."""

ERRORS: Final = {kind.__name__: kind for kind in STATUS_OF}
"""The errors by the name that an answer has under `error`."""

RETRIED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
"""What a client asks again after; everything else is an answer."""

RUNNER_KEY_VARIABLE: Final = "AGL_RUNNER_KEY"
"""The same for the key of runners, for servers."""
