"""AgentOps' service: a key becomes a token, and with that spans are sent by OpenTelemetry's protocol."""

import gzip
import logging
import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, Span as SdkSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lightning_core.errors import ConfigError
from lightning_core.secrets import hide_in_text
from lightning_core.tracer import Trace, current_trace
from lightning_core.tracer.export import SpanExport

logger = logging.getLogger(__name__)

API_URL = "https://api.agentops.ai"
TRACES_URL = "https://otlp.agentops.ai/v1/traces"

TOKEN_PATH = "/v3/auth/token"
PROJECT_ID = "agentops.project.id"
"""The attribute of a resource that says which project its spans are of."""

_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_REQUEST_SECONDS = 10.0
_TRIES = 3
_FIRST_PAUSE_SECONDS = 0.5
_SERVER_FAILED = 500
_TOO_MANY = 429
_UNAUTHORIZED = (401, 403)


class Service:
    """Sends the spans of traces to AgentOps, from a thread of its own, until it is stopped.

    A service that is slow or refuses the key costs the agents nothing: what it does not take is logged, and dropped.

    Args:
        api_key: The key; never logged.
        endpoint: Where it becomes a token.
        exporter_endpoint: Where spans are sent.

    Raises:
        ConfigError: When the key, or an address, cannot be one.
    """

    def __init__(self, api_key: str, endpoint: str, exporter_endpoint: str) -> None:
        if not isinstance(api_key, str) or not api_key.strip() or not api_key.isascii() or not api_key.isprintable():
            raise ConfigError("api_key is not an AgentOps key; give the one of your project, or leave api_key out")
        for name, url in (("endpoint", endpoint), ("exporter_endpoint", exporter_endpoint)):
            if isinstance(url, str) and "@" in url:
                raise ConfigError(
                    f"{name} has an @; a user and a password in a URL would be logged, and api_key is what is needed"
                )
            if not isinstance(url, str) or not url.startswith(("http://", "https://")):
                raise ConfigError(f"{name} is {url!r}; it is a URL that begins with http:// or https://")
        self._exporter = (api_key.strip(), endpoint.rstrip("/"), exporter_endpoint)
        self._export: SpanExport | None = None

    def start(self) -> SpanProcessor:
        """Return what takes the spans; connects to nothing before there is one."""
        self._export = SpanExport(AgentOpsExporter(*self._exporter))
        return _Forwarding(self._export)

    def stop(self, timeout_seconds: float) -> None:
        """Send what is left, for at most so long."""
        export, self._export = self._export, None
        if export is not None:
            export.close(timeout_seconds)


class _Forwarding(SpanProcessor):
    """Hands over each span that ends in its trace."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        # Weak: a span that never ends would keep its trace, with all that was said.
        self._traces: WeakValueDictionary[int, Trace] = WeakValueDictionary()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        trace = current_trace()
        if trace is None and span.parent is not None:
            trace = self._traces.get(span.parent.span_id)
        if trace is not None:
            self._traces[span.get_span_context().span_id] = trace

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        trace = self._traces.pop(context.span_id, None) if context is not None else None
        if trace is not None and not trace.closed:
            self._export.add(span, trace)


class AgentOpsExporter(SpanExporter):
    """Sends spans to AgentOps. AgentOps' own exporter does not work with OpenTelemetry 1.45 and later.

    Args:
        api_key: What the token is asked for with; empty for none, where none is needed.
        endpoint: Where.
        traces_url: Where spans are sent.
    """

    def __init__(self, api_key: str, endpoint: str, traces_url: str) -> None:
        self._api_key = api_key
        self._endpoint = endpoint
        self._traces_url = traces_url
        self._session = requests.Session()
        # Nothing is added to a request: without this, a line of ~/.netrc takes the token's place.
        self._session.auth = lambda request: request
        self._token: str | None = None
        self._project: str | None = None
        self._over = threading.Event()
        self._failure_logged = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`: at most three tries, and one new token."""
        try:
            failure = self._send(spans)
        except requests.RequestException as exc:
            # Its text may have the URL, and never a header or a body.
            failure = f"{type(exc).__name__}: {exc}"
        if failure is None:
            self._failure_logged = False
            return SpanExportResult.SUCCESS
        # Each batch would say the same.
        level = logging.DEBUG if self._failure_logged else logging.WARNING
        self._failure_logged = True
        logger.log(
            level,
            "lightning.agentops_not_reached spans=%d cause=%s; the store has these spans, AgentOps does not",
            len(spans),
            hide_in_text(failure),
        )
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop, also in the middle of a pause between two tries."""
        self._over.set()
        self._session.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True

    def _send(self, spans: Sequence[ReadableSpan]) -> str | None:
        """Send them; return why that cannot be done."""
        pause = _FIRST_PAUSE_SECONDS
        failure = None
        for tried in range(_TRIES):
            if tried and self._over.wait(pause):
                break
            if self._api_key and self._token is None and (failure := self._ask_for_token()) is not None:
                return failure
            answer = self._session.post(
                self._traces_url,
                data=gzip.compress(self._encoded(spans)),
                headers=_HEADERS if self._token is None else {**_HEADERS, "Authorization": f"Bearer {self._token}"},
                timeout=_REQUEST_SECONDS,
                allow_redirects=False,
            )
            if answer.ok:
                return None
            failure = f"{self._traces_url} answers {answer.status_code}"
            if answer.status_code in _UNAUTHORIZED:
                self._token, pause = None, 0.0  # it has expired
            elif answer.status_code == _TOO_MANY or answer.status_code >= _SERVER_FAILED:
                pause *= 2
            else:
                return failure
        return failure or "the tracer was torn down"

    def _ask_for_token(self) -> str | None:
        url = self._endpoint + TOKEN_PATH
        answer = self._session.post(
            url, json={"api_key": self._api_key}, timeout=_REQUEST_SECONDS, allow_redirects=False
        )
        if not answer.ok:
            told = "the key is refused" if answer.status_code in _UNAUTHORIZED else "no token"
            return f"{url} answers {answer.status_code}: {told}; look at api_key"
        try:
            said = answer.json()
        except ValueError:
            said = None
        if not isinstance(said, dict) or not isinstance(said.get("token"), str):
            return f"{url} answers without a token"
        self._token = said["token"]
        project = said.get("project_id")
        self._project = project if isinstance(project, str) else None
        return None

    def _encoded(self, spans: Sequence[ReadableSpan]) -> bytes:
        request = encode_spans(spans)
        if self._project is not None:
            for group in request.resource_spans:
                group.resource.attributes.add(key=PROJECT_ID).value.string_value = self._project
        encoded: bytes = request.SerializeToString()
        return encoded
