"""The real instrumentor of the real OpenAI client, against a small local endpoint."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

from lightning_core.tracer import OtelTracer, Trace

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.skipif(
    find_spec("opentelemetry.instrumentation.openai") is None,
    reason="opentelemetry-instrumentation-openai is not installed",
)


class Endpoint(BaseHTTPRequestHandler):
    """Answers with the question in capitals."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": asked["messages"][-1]["content"].upper()}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join(20)


def texts(trace: Trace) -> list[tuple[str, str]]:
    """Return what was asked and what was answered in each call of a trace."""
    found = []
    for span in trace.spans:
        (asked,) = json.loads(span.attributes["gen_ai.input.messages"])
        (answered,) = json.loads(span.attributes["gen_ai.output.messages"])
        found.append((asked["parts"][0]["content"], answered["parts"][0]["content"]))
    return found


@pytest.mark.parametrize("again", [1, 2])
async def test_calls_of_concurrent_rollouts_are_recorded_once_each_with_their_messages(
    endpoint: str, again: int
) -> None:
    tracer = OtelTracer(instrument=("openai",))

    async def rollout(number: int, client: "openai.AsyncOpenAI", sync: "openai.OpenAI") -> Trace:
        async with tracer.trace_context() as trace:
            question = [{"role": "user", "content": f"async {number}"}]
            await client.chat.completions.create(model="m", messages=question)
            question = [{"role": "user", "content": f"sync {number}"}]
            await asyncio.to_thread(sync.chat.completions.create, model="m", messages=question)
        return trace

    with tracer.lifespan(), openai.OpenAI(base_url=endpoint, api_key="k") as sync:
        async with openai.AsyncOpenAI(base_url=endpoint, api_key="k") as client:
            traces = await asyncio.gather(*(rollout(number, client, sync) for number in range(10)))
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "outside"}])
    for number, trace in enumerate(traces):
        assert texts(trace) == [(f"async {number}", f"ASYNC {number}"), (f"sync {number}", f"SYNC {number}")]
