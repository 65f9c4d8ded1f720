"""A model that answers as a test says, over HTTP."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

Reply = Callable[[dict[str, Any]], str | dict[str, Any]]


@pytest.fixture
def serve_model() -> Iterator[Callable[[Reply], str]]:
    """Start a server of chat completions, whose answers a function gives; return its URL."""
    servers = []

    def start(reply: Reply) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = reply(request)
                message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                body = json.dumps(
                    {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Keep quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
