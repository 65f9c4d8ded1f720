"""With a key, spans go to AgentOps' service too: here to a small server that answers as its API is documented."""

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from agentops_parts import CHAT, USER, Attempt
from aiohttp import web
from lightning_agentops import AgentOpsTracer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_core.errors import ConfigError

KEY = "0a1b2c3d-0000-4000-8000-5ec4e75ec4e7"


@dataclass
class FakeService:
    """AgentOps' API, as much as spans need."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers to spans; then 200."""
    refuses: bool = False
    tokens: int = 0
    requests: list[tuple[str, ExportTraceServiceRequest]] = field(default_factory=list)
    """The header `Authorization`, and what was sent; those that were accepted."""
    headers: list[dict[str, str]] = field(default_factory=list)

    async def token(self, request: web.Request) -> web.Response:
        if self.refuses or (await request.json())["api_key"] != KEY:
            return web.json_response({"error": "Invalid API key"}, status=403)
        self.tokens += 1
        return web.json_response({"token": f"jwt-{self.tokens}", "project_id": "p-1", "project_prem_status": "free"})

    async def traces(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if self.statuses else 200
        self.headers.append(dict(request.headers))
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        if status == 200:
            self.requests.append((request.headers["authorization"], ExportTraceServiceRequest.FromString(body)))
        return web.Response(status=status)

    def spans(self) -> list[Any]:
        return [
            span
            for _, request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    service = FakeService()
    app = web.Application()
    app.router.add_post("/v3/auth/token", service.token)
    app.router.add_post("/v1/traces", service.traces)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


def tracer_to(service: FakeService, **options: Any) -> AgentOpsTracer:
    return AgentOpsTracer(
        **{"api_key": KEY, "endpoint": service.url, "exporter_endpoint": f"{service.url}/v1/traces", **options}
    )


async def trace(tracer: AgentOpsTracer, attempt: Attempt, client: openai.AsyncOpenAI) -> None:
    """Trace a call, with the event loop free for the service while the tracer is torn down."""
    tracer.init()
    try:
        async with attempt.traced(tracer):
            await client.chat.completions.create(model="small", messages=USER)
    finally:
        await asyncio.to_thread(tracer.teardown)


async def test_spans_go_to_the_store_and_to_the_service(
    service: FakeService, attempt: Attempt, client: openai.AsyncOpenAI
) -> None:
    await trace(tracer_to(service), attempt, client)
    stored = await attempt.spans()
    session = f"{attempt.rollout_id}.session"
    assert [span.name for span in stored] == [CHAT, session]
    assert stored[0].parent_id == stored[1].span_id
    ((authorization, request),) = service.requests
    assert authorization == "Bearer jwt-1"
    assert [span.name for span in service.spans()] == [CHAT, session]
    assert {span.trace_id.hex() for span in service.spans()} == {stored[0].trace_id}
    attributes = {pair.key: pair.value.string_value for pair in request.resource_spans[0].resource.attributes}
    assert attributes["agentlightning.rollout_id"] == attempt.rollout_id


async def test_a_token_that_has_expired_is_renewed(
    service: FakeService, attempt: Attempt, client: openai.AsyncOpenAI
) -> None:
    service.statuses = [401]
    await trace(tracer_to(service), attempt, client)
    assert [authorization for authorization, _ in service.requests] == ["Bearer jwt-2"]
    assert len(service.spans()) == 2


async def test_a_service_that_is_busy_is_asked_again(
    service: FakeService, attempt: Attempt, client: openai.AsyncOpenAI
) -> None:
    service.statuses = [503, 429]
    await trace(tracer_to(service, export_timeout_seconds=20.0), attempt, client)
    assert len(service.spans()) == 2


async def test_a_password_in_netrc_does_not_take_the_tokens_place(
    service: FakeService,
    attempt: Attempt,
    client: openai.AsyncOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    await trace(tracer_to(service), attempt, client)
    assert [authorization for authorization, _ in service.requests] == ["Bearer jwt-1"]


async def test_headers_for_another_collector_do_not_reach_the_service(
    service: FakeService, attempt: Attempt, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-other-key=s3cret,authorization=s3cret")
    await trace(tracer_to(service), attempt, client)
    assert [authorization for authorization, _ in service.requests] == ["Bearer jwt-1"]
    assert not any("s3cret" in value for headers in service.headers for value in headers.values())


@pytest.mark.parametrize("how", ["refused", "gone"])
async def test_a_service_that_does_not_take_them_costs_nothing_and_the_key_is_not_told(
    service: FakeService, attempt: Attempt, client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    service.refuses = True
    options = {} if how == "refused" else {"endpoint": "http://127.0.0.1:9", "exporter_endpoint": "http://127.0.0.1:9"}
    tracer = tracer_to(service, **options)
    with caplog.at_level(logging.DEBUG):
        await trace(tracer, attempt, client)
    assert len(await attempt.spans()) == 2
    assert service.requests == []
    assert ("refuses the key; look at api_key" if how == "refused" else "onnection") in caplog.text
    assert KEY not in caplog.text
    assert KEY not in repr(tracer) + repr(vars(tracer))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"api_key": " "}, "api_key is not an AgentOps key"),
        ({"api_key": "k\n"}, "api_key is not an AgentOps key"),
        ({"api_key": KEY, "endpoint": "api.agentops.ai"}, "endpoint is 'api.agentops.ai'; it is a URL"),
        ({"api_key": KEY, "exporter_endpoint": "otlp"}, "exporter_endpoint is 'otlp'; it is a URL"),
        ({"api_key": KEY, "endpoint": 3}, "endpoint is 3; it is a URL"),
        ({"api_key": KEY, "endpoint": f"http://user:{KEY}@host"}, "endpoint has an @; a user and a password"),
        ({"endpoint": "http://host"}, "give api_key= too"),
        ({"exporter_endpoint": "http://host"}, "give api_key= too"),
        ({"export_timeout_seconds": -1}, "export_timeout_seconds is 0 or more, got -1"),
    ],
)
def test_what_cannot_be_a_key_or_an_address_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        AgentOpsTracer(**options)
    assert KEY not in str(refused.value)


def test_a_key_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOPS_API_KEY", KEY)
    assert AgentOpsTracer()._service is None
