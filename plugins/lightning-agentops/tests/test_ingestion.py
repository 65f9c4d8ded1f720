"""`AgentOpsServer` and `agl agentops`: programs that call agentops.init() report into a store."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agentops_parts import CHAT, Attempt, begin
from lightning_agentops.__main__ import main
from lightning_agentops.ingestion import AgentOpsServer
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_http.auth import Keys
from lightning_proxy.testing import FakeEngine
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_core.errors import ConfigError, StoreError, StoreUnavailable
from lightning_core.store import InMemoryLightningStore

KEY = "key-of-the-store"
PROTOBUF = {"content-type": "application/x-protobuf"}


def otlp(name: str = "a span", **resource: str) -> bytes:
    """Return a request with one span."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for key, value in resource.items():
        group.resource.attributes.add(key=key.replace("__", ".")).value.string_value = value
    group.scope_spans.add().spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), name=name)
    return request.SerializeToString()


def rejected(body: bytes) -> tuple[int, str]:
    told = ExportTraceServiceResponse.FromString(body).partial_success
    return told.rejected_spans, told.error_message


def place(attempt: Attempt) -> str:
    return f"/rollout/{attempt.rollout_id}/attempt/{attempt.attempt_id}"


def key_of(attempt: Attempt, run_id: str, seconds: float = 60.0) -> str:
    keys = Keys(KEY, attempt_seconds=seconds)
    return str(keys.mint(run_id, attempt.rollout_id, attempt.attempt_id, time.time()))


@pytest.fixture
async def server(store: InMemoryLightningStore) -> AsyncIterator[AgentOpsServer]:
    async with AgentOpsServer(store, key="") as server:
        yield server


@pytest.fixture
async def guarded(store: InMemoryLightningStore) -> AsyncIterator[AgentOpsServer]:
    async with AgentOpsServer(store, key=KEY) as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), auto_decompress=True) as http:
        yield http


async def post(http: aiohttp.ClientSession, url: str, body: Any, key: str | None = None, **headers: str) -> Any:
    """Send a request; return the status, and what was answered."""
    sent = {"Accept-Encoding": "identity", **PROTOBUF, **headers}
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    given = {"data": body} if isinstance(body, bytes) else {"json": body}
    if not isinstance(body, bytes):
        del sent["content-type"]
    async with http.post(url, headers=sent, **given) as answer:
        said = await answer.read()
        return answer.status, said if answer.content_type == "application/x-protobuf" else await answer.json()


async def test_the_url_and_attributes_of_the_resource_say_whose_spans_they_are(
    server: AgentOpsServer, http: aiohttp.ClientSession, attempt: Attempt
) -> None:
    assert await post(http, f"{server.url}{place(attempt)}/v1/traces", otlp("by the URL")) == (200, b"")
    ids = {"agentlightning__rollout_id": attempt.rollout_id, "agentlightning__attempt_id": attempt.attempt_id}
    assert await post(http, f"{server.url}/v1/traces", otlp("by resource", **ids)) == (200, b"")
    assert [span.name for span in await attempt.spans()] == ["by the URL", "by resource"]


async def test_so_does_the_key_of_an_attempt(
    guarded: AgentOpsServer, http: aiohttp.ClientSession, store: InMemoryLightningStore, attempt: Attempt
) -> None:
    key = key_of(attempt, store.run_id)
    status, said = await post(http, f"{guarded.url}/v3/auth/token", {"api_key": key})
    assert (status, said["project_id"]) == (200, store.run_id)
    assert await post(http, f"{guarded.url}/v1/traces", otlp("mine"), said["token"]) == (200, b"")
    assert [span.name for span in await attempt.spans()] == ["mine"]


async def test_spans_of_nobody_are_refused_and_that_is_logged(
    server: AgentOpsServer, http: aiohttp.ClientSession, attempt: Attempt, caplog: pytest.LogCaptureFixture
) -> None:
    status, said = await post(http, f"{server.url}/v1/traces", otlp())
    assert (status, rejected(said)[0]) == (200, 1)
    assert "lightning.agentops_spans_rejected spans=1" in caplog.text
    assert "agentlightning.rollout_id" in caplog.text
    nowhere = await post(http, f"{server.url}/rollout/ro-none/attempt/at-none/v1/traces", otlp())
    assert rejected(nowhere[1])[0] == 1
    assert list(await attempt.spans()) == []


async def test_where_keys_are_needed_only_the_right_one_will_do(
    guarded: AgentOpsServer, http: aiohttp.ClientSession, store: InMemoryLightningStore, attempt: Attempt
) -> None:
    other = await begin(store)
    url = f"{guarded.url}{place(attempt)}"
    for key in (None, "wrong", "agl-at-x.y", key_of(attempt, store.run_id, seconds=-10.0)):
        status, said = await post(http, f"{url}/v1/traces", otlp(), key)
        assert (status, said["error"]) == (401, "AccessDenied")
        status, said = await post(http, f"{url}/v3/auth/token", {"api_key": key or ""})
        assert (status, said["error"]) == (401, "AccessDenied")
        assert "AGENTOPS_API_KEY is the key of the attempt" in said["message"]
    status, said = await post(http, f"{url}/v1/traces", otlp(), key_of(other, store.run_id))
    assert (status, said["error"]) == (403, "AccessDenied")
    assert await post(http, f"{url}/v1/traces", otlp("by the store's key"), KEY) == (200, b"")
    assert [span.name for span in await attempt.spans()] == ["by the store's key"]
    assert list(await other.spans()) == []


async def test_a_key_of_an_attempt_leads_to_its_own_run(
    guarded: AgentOpsServer, http: aiohttp.ClientSession, store: InMemoryLightningStore
) -> None:
    theirs = store.for_run("another-run")
    attempt = await begin(theirs)
    key = key_of(attempt, "another-run")
    assert await post(http, f"{guarded.url}/v1/traces", otlp("theirs"), key) == (200, b"")
    assert [span.name for span in await attempt.spans()] == ["theirs"]
    status, said = await post(http, f"{guarded.url}/v1/traces", otlp(), key, **{"x-agl-run": "a-third"})
    assert (status, said["error"]) == (403, "AccessDenied")


@pytest.mark.parametrize("key", ["", KEY])
async def test_what_is_not_kept_is_answered_with_a_token_and_without(
    store: InMemoryLightningStore, http: aiohttp.ClientSession, key: str
) -> None:
    async with AgentOpsServer(store, key=key) as server:
        status, said = await post(http, f"{server.url}/rollout/r/attempt/a/v4/logs/upload/", {"body": "printed"})
        assert (status, said["size"]) == (200, len(b'{"body": "printed"}'))
        assert (await post(http, f"{server.url}/v4/objects/upload/", {"body": "x"}))[0] == 200
        assert await post(http, f"{server.url}/v1/metrics", b"\x0a\x00") == (200, b"")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v3/auth/token", b"no json"), ("/v3/auth/token", []), ("/v1/traces", b"\xff\xff")],
)
async def test_bad_input_gets_an_answer(
    server: AgentOpsServer, http: aiohttp.ClientSession, path: str, body: Any
) -> None:
    found, said = await post(http, f"{server.url}{path}", body)
    assert found == 400
    assert "Traceback" not in str(said)
    assert "api_key" in str(said) or path == "/v1/traces"


async def test_only_this_machine_is_answered_without_a_key(server: AgentOpsServer, http: aiohttp.ClientSession) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        async with http.post(f"{server.url}/v1/traces", headers=headers) as answer:
            assert answer.status == 403


async def test_a_store_that_is_gone_is_said_so_and_a_bug_tells_nothing(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(InMemoryLightningStore):
        error: Exception = StoreUnavailable("the store is away")

        async def add_many_spans(self, spans: Any) -> Any:
            raise self.error

    store = Broken()
    attempt = await begin(store)
    async with AgentOpsServer(store, key="") as server:
        url = f"{server.url}{place(attempt)}/v1/traces"
        status, said = await post(http, url, otlp())
        assert (status, said["message"]) == (503, "the store is away")
        store.error = ZeroDivisionError("s3cret")
        status, said = await post(http, url, otlp())
        assert (status, "s3cret" in str(said)) == (500, False)
    assert "lightning.agentops_request_failed" in caplog.text


async def test_a_server_is_started_once_and_stopped_for_good(store: InMemoryLightningStore) -> None:
    server = AgentOpsServer(store, key="")
    with pytest.raises(StoreError, match="the port is not chosen yet"):
        _ = server.url
    await server.stop()
    async with server:
        with pytest.raises(StoreError, match="runs already"):
            await server.start()
        with pytest.raises(ConfigError, match="cannot serve on port"):
            await AgentOpsServer(store, port=int(server.url.rpartition(":")[2]), key="").start()
    await server.stop()
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    with pytest.raises(
        ConfigError, match=r"host 0\.0\.0\.0 can be reached from other machines, so the server needs a key"
    ):
        AgentOpsServer(store, "0.0.0.0", key="")


# The real SDK, in a process of its own

PROGRAM = """
import agentops, openai, os

agentops.init(trace_name="of the program")

@agentops.operation
def step():
    with openai.OpenAI(base_url=os.environ["MODEL_URL"], api_key="k") as client:
        messages = [{"role": "user", "content": "hi"}]
        return client.chat.completions.create(model="small", messages=messages).choices[0].message.content

print(step())
agentops.end_trace()
"""


async def run_program(folder: Path, **variables: str) -> str:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTOPS_", "OTEL_"))}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "lightning_agentops", "program.py"],
        cwd=folder,
        env={**own, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("with_key", [False, True])
async def test_a_program_that_initialises_agentops_reports_into_the_store(
    store: InMemoryLightningStore, attempt: Attempt, engine: FakeEngine, tmp_path: Path, with_key: bool
) -> None:
    async with AgentOpsServer(store, key=KEY if with_key else "") as server:
        key = key_of(attempt, store.run_id) if with_key else None
        variables = server.variables(attempt.rollout_id, attempt.attempt_id, key)
        printed = await run_program(tmp_path, MODEL_URL=engine.url, **variables)
    assert printed.splitlines()[0] == "ok"
    chat, step, session = sorted(await attempt.spans(), key=lambda span: span.end_time or 0.0)
    assert [chat.name, step.name, session.name] == [CHAT, "step.task", "of the program.session"]
    assert [chat.parent_id, step.parent_id] == [step.span_id, session.span_id]
    (call,) = await attempt.calls()
    assert call.answers[0]["content"] == "ok"


def test_what_is_no_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lightning_agentops", "none.py"])
    with pytest.raises(SystemExit, match=r"usage: python -m lightning_agentops PROGRAM .*'none.py' is not"):
        main()


# The command


async def agl(*arguments: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lightning_core", "agentops", *arguments),
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.slow
async def test_the_command_serves_for_a_store_server_until_it_is_told_to_end(
    store: InMemoryLightningStore, http: aiohttp.ClientSession
) -> None:
    async with LightningStoreServer(store, key=KEY) as behind, LightningStoreClient(behind.url, key=KEY) as client:
        attempt = await begin(client)
        process = await agl("--store", behind.url, "--port", "0", AGL_KEY=KEY)
        assert process.stdout is not None
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            assert f"for run {store.run_id} at http://127.0.0.1:" in line
            url = line.partition(" at ")[2].partition(";")[0]
            key = client.attempt_key(attempt)
            assert key is not None
            assert await post(http, f"{url}/v1/traces", otlp("through the command"), key) == (200, b"")
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, errors) == (0, b"")
    assert [span.name for span in await Attempt(store, attempt.rollout_id, attempt.attempt_id).spans()] == [
        "through the command"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--store", "http://127.0.0.1:9", "--key", ""], "--key is empty"),
        (["--store", "http://127.0.0.1:9"], "the store at http://127.0.0.1:9 cannot be used"),
    ],
)
async def test_a_wrong_command_is_told_what_is_wrong(arguments: list[str], told: str) -> None:
    process = await agl(*arguments)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert told in errors.decode()
    assert "Traceback" not in errors.decode()
