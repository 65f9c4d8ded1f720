"""As much of Weave's service as its client needs, on a free port of this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WeaveService:
    """Takes what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.url = ""
        self.refuses: str | None = None
        """The part of a path: requests for such ones are refused."""
        self.gate = threading.Event()
        """Requests about calls wait for it."""
        self.gate.set()
        self.requests: list[tuple[str, str, bytes]] = []
        """The path, the authorization and the body of each."""

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls that were sent, whole, whichever way they came."""
        found: dict[str, dict[str, Any]] = {}
        for path, _, body in self.requests:
            if "/call" not in path:
                continue
            for item in json.loads(body)["batch"]:
                told = item.get("req", item)
                call = told.get("start") or told.get("end") or told
                found.setdefault(call["id"], {}).update(
                    {key: value for key, value in call.items() if value is not None}
                )
        return list(found.values())

    def answer(self, path: str, authorization: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.requests.append((path, authorization, body))
        if self.refuses is not None and self.refuses in path:
            return 403, {"error": "no"}
        if path == "/graphql":
            return 200, {"data": {"project": {"name": "project"}, "viewer": None}}
        if path.endswith("obj/create"):
            return 200, {"digest": "d" * 43}
        if "file" in path:
            return 200, {"digest": "f" * 43}
        self.gate.wait(30)
        return 200, {"res": []}


@contextmanager
def weave_service() -> Iterator[WeaveService]:
    service = WeaveService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, fields = service.answer(self.path, self.headers.get("authorization") or "", body)
            answer = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield service
        finally:
            service.gate.set()
            server.shutdown()
            thread.join(20)
