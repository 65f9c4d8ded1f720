"""Clients that speak HTTP in their own way: Java's, those that prefer WebSockets, and pages in browsers."""

import asyncio
import json

from lightning_proxy import LLMProxy
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent


async def exchange(proxy: LLMProxy, *sent: bytes) -> bytes:
    """Send bytes, and return all that comes back until the proxy closes the connection."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        try:
            for each in sent:
                writer.write(each)
                await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def head(agent: Agent, *lines: str, path: str = "/chat/completions", method: str = "POST") -> bytes:
    url = f"{agent.base}{path}".removeprefix(agent.proxy.url)
    return "\r\n".join([f"{method} {url} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


JAVA = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")
"""What Java's HttpClient sends with each request."""


def said(text: str) -> bytes:
    return json.dumps({"model": "small", "messages": [{"role": "user", "content": text}]}).encode()


async def test_a_request_for_http2_is_answered_in_http1(agent: Agent, engine: FakeEngine) -> None:
    body = said("one")
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:9], body[9:], b""))
    last = head(agent, "Connection: close, Upgrade", "Upgrade: h2c", path="/models", method="GET")
    answered = await exchange(
        agent.proxy,
        head(agent, *JAVA, f"Content-Length: {len(body)}") + body,
        head(agent, *JAVA, "Transfer-Encoding: chunked") + chunked + last,
    )
    assert answered.count(b"HTTP/1.1 200 OK") == 3
    assert [each.fields["messages"][0]["content"] for each in engine.received] == ["one", "one"]
    assert len(await agent.spans()) == 2


async def test_a_websocket_is_refused_so_that_the_client_goes_on_over_http(agent: Agent, engine: FakeEngine) -> None:
    handshake = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YQ==")
    answered = await exchange(
        agent.proxy,
        head(agent, *handshake, path="/responses", method="GET")
        + head(agent, "Connection: close", path="/models", method="GET"),
    )
    refused, _, after = answered.partition(b"HTTP/1.1 200 OK")
    assert refused.startswith(b"HTTP/1.1 426 ")
    assert b"upgrade: HTTP/1.1" in refused
    assert b"make the call over HTTP" in refused
    assert b'"small"' in after
    assert not engine.received


async def test_the_models_can_be_asked_for_without_a_body(agent: Agent, engine: FakeEngine) -> None:
    for path, status in (("/models", 200), ("/models/small", 200), ("/models/none", 404)):
        async with agent.http.head(f"{agent.base}{path}") as response:
            assert (response.status, await response.read()) == (status, b"")
    assert not engine.received
