"""AgentOps' service: a key becomes a token, and with that spans are sent by OpenTelemetry's protocol."""

from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from requests.auth import AuthBase

from lightning_core.errors import ConfigError
from lightning_core.tracer.export import SpanExport

API_URL = "https://api.agentops.ai"
TRACES_URL = "https://otlp.agentops.ai/v1/traces"

TOKEN_PATH = "/v3/auth/token"

_OWN_HEADERS = {"content-type", "content-encoding", "content-length", "user-agent"}
_REQUEST_SECONDS = 10.0
_UNAUTHORIZED = (401, 403)


class Service:
    """Where spans are sent, and by which key.

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

    def export(self) -> SpanExport:
        """Return what sends spans; it connects to nothing before there is one."""
        return SpanExport(AgentOpsExporter(*self._exporter))


class AgentOpsExporter(OTLPSpanExporter):
    """Sends spans to AgentOps. AgentOps' own exporter does not work with OpenTelemetry 1.45 and later.

    Args:
        api_key: What the token is asked for with; empty for none, where none is needed.
        endpoint: Where.
        traces_url: Where spans are sent.
    """

    def __init__(self, api_key: str, endpoint: str, traces_url: str) -> None:
        session = requests.Session()
        session.auth = _TokenAuth(api_key, endpoint + TOKEN_PATH)
        super().__init__(traces_url, timeout=_REQUEST_SECONDS, compression=Compression.Gzip, session=session)


class _TokenAuth(AuthBase):
    """Adds the token, which is renewed once when it is refused, and takes away what is for other collectors.

    OpenTelemetry's exporter adds the headers of its environment variables, which may have the key of another service.
    """

    def __init__(self, api_key: str, url: str) -> None:
        self._api_key = api_key
        self._url = url
        self._token: str | None = None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name in set(request.headers) - _OWN_HEADERS:
            if name.lower() not in _OWN_HEADERS:
                del request.headers[name]
        if self._api_key:
            self._authorize(request)
            request.register_hook("response", self._renew)
        return request

    def _authorize(self, request: requests.PreparedRequest) -> None:
        if self._token is None:
            self._token = self._ask_for_token()
        request.headers["Authorization"] = f"Bearer {self._token}"

    def _renew(self, response: requests.Response, **options: Any) -> requests.Response:
        if response.status_code not in _UNAUTHORIZED:
            return response
        self._token = None
        request = response.request.copy()
        self._authorize(request)
        response.close()
        again: requests.Response = response.connection.send(request, **options)
        return again

    def _ask_for_token(self) -> str:
        answer = requests.post(
            self._url,
            json={"api_key": self._api_key},
            timeout=_REQUEST_SECONDS,
            allow_redirects=False,
            auth=lambda request: request,  # without this, a line of ~/.netrc adds a password
        )
        if answer.status_code in _UNAUTHORIZED:
            raise requests.RequestException(f"{self._url} refuses the key; look at api_key")
        answer.raise_for_status()
        said = answer.json()
        if not isinstance(said, dict) or not isinstance(said.get("token"), str):
            raise requests.RequestException(f"{self._url} answers without a token")
        return str(said["token"])
