"""Requests that do not come whole do not fill the memory: what is held of them together has a limit."""

import asyncio
from typing import Any

import aiohttp
import pytest
from lightning_proxy.request import IncomingBodies, Refused
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy

from lightning_core.types import AttemptedRollout


class Uploads:
    """Requests whose bodies come piece by piece, to an application that reads them."""

    def __init__(self, max_bytes: int) -> None:
        self.bodies = IncomingBodies(self._read, max_bytes)

    async def _read(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            continue
        await send({"type": "done"})

    def begin(self) -> tuple["asyncio.Queue[Any]", "asyncio.Task[list[Any]]"]:
        pieces: asyncio.Queue[Any] = asyncio.Queue()
        sent: list[Any] = []

        async def serve() -> list[Any]:
            async def send(message: Any) -> None:
                sent.append(message)

            await self.bodies({"type": "http"}, pieces.get, send)
            return sent

        return pieces, asyncio.create_task(serve())


def piece(count: int, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * count, "more_body": more}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bodies_that_are_too_large_together_are_refused_one_by_one() -> None:
    uploads = Uploads(100)
    (first, one), (second, two) = uploads.begin(), uploads.begin()
    first.put_nowait(piece(60))
    await settle()
    second.put_nowait(piece(60))
    with pytest.raises(Refused, match="60 bytes together, and max_incoming_bytes is 100") as refused:
        await two
    assert (refused.value.status, refused.value.retry_after) == (503, 1.0)
    first.put_nowait(piece(30, more=False))
    assert await one == [{"type": "done"}]


@pytest.mark.parametrize("end", ["whole", "gone", "cancelled"])
async def test_a_body_counts_until_it_is_whole_or_given_up(end: str) -> None:
    uploads = Uploads(100)
    first, one = uploads.begin()
    first.put_nowait(piece(60))
    await settle()
    if end == "cancelled":
        one.cancel()
    else:
        first.put_nowait(piece(1, more=False) if end == "whole" else {"type": "http.disconnect"})
    await asyncio.gather(one, return_exceptions=True)
    second, two = uploads.begin()
    second.put_nowait(piece(60))
    third, three = uploads.begin()
    third.put_nowait(piece(30))
    await settle()
    assert not two.done()
    assert not three.done()
    for pieces, task in ((second, two), (third, three)):
        pieces.put_nowait(piece(0, more=False))
        await task


async def test_one_that_comes_alone_or_at_once_is_taken_whatever_its_size() -> None:
    uploads = Uploads(100)
    alone, one = uploads.begin()
    for _ in range(3):
        alone.put_nowait(piece(90))
    await settle()
    at_once, two = uploads.begin()
    at_once.put_nowait(piece(500, more=False))
    assert await two == [{"type": "done"}]
    alone.put_nowait(piece(90, more=False))
    assert await one == [{"type": "done"}]


async def test_an_agent_is_told_to_try_again(
    make_proxy: MakeProxy, engine: FakeEngine, attempt: AttemptedRollout, http: aiohttp.ClientSession
) -> None:
    agent = Agent(http, await make_proxy(engine, max_incoming_bytes=1_000_000), attempt)
    rest = asyncio.Event()

    async def body() -> Any:
        yield b'{"model": "small", "messages": [], "x": "' + b"x" * 700_000
        await rest.wait()
        yield b'"}'

    async def call() -> Any:
        async with http.post(f"{agent.base}/chat/completions", data=body()) as response:
            return response.status, response.headers.get("retry-after"), await response.json()

    calls = [asyncio.create_task(call()) for _ in range(2)]
    (refused,), (other,) = await asyncio.wait(calls, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    status, retry_after, answer = await refused
    assert (status, retry_after, answer["error"]["code"]) == (503, "1", "too_many_bytes")
    rest.set()
    assert (await other)[0] == 200


async def test_a_proxy_takes_no_large_head_and_waits_for_no_half_request(
    make_proxy: MakeProxy, engine: FakeEngine
) -> None:
    proxy = await make_proxy(engine, head_seconds=0.05, body_seconds=0.05)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    for sent, status in (
        (head + b"x: " + b"a" * 65_536 + b"\r\n\r\n", b"431"),
        (head, b"408"),
        (head + b"content-length: 10\r\n\r\n123", b"403"),  # it belongs to no attempt
    ):
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(sent)
            assert (await reader.read()).split()[1] == status
            writer.close()
