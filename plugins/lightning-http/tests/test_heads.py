"""The head of an answer goes out with the beginning of its body, and alone where the body lets wait for itself."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from lightning_http.listener import HeadsWithBodies, Listener, bind

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Recorded(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.done.append(b"".join(list_of_data))

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


@pytest.fixture
async def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def transport(recorded: Recorded) -> HeadsWithBodies:
    return HeadsWithBodies(recorded, asyncio.get_running_loop())


@pytest.mark.parametrize("body", [b"", b"body", b"b" * 1_000_000])
async def test_head_and_body_are_one_write(transport: HeadsWithBodies, recorded: Recorded, body: bytes) -> None:
    transport.write(HEAD)
    transport.write(body)
    await asyncio.sleep(0)
    assert recorded.done == [HEAD + body]


async def test_a_head_whose_body_comes_later_goes_out_with_the_next_turn_of_the_loop(
    transport: HeadsWithBodies, recorded: Recorded
) -> None:
    transport.write(HEAD)
    assert recorded.done == []
    await asyncio.sleep(0)
    assert recorded.done == [HEAD]
    transport.write(b"body")
    assert recorded.done == [HEAD, b"body"]


async def test_what_looks_like_a_head_is_written_in_its_place(transport: HeadsWithBodies, recorded: Recorded) -> None:
    for piece in (b"one", b"HTTP/1.1 is a protocol", b"HTTP/1.1 too", b"two"):
        transport.write(piece)
    await asyncio.sleep(0)
    assert recorded.done == [b"one", b"HTTP/1.1 is a protocolHTTP/1.1 too", b"two"]


async def test_a_head_is_written_before_the_connection_is_closed(
    transport: HeadsWithBodies, recorded: Recorded
) -> None:
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert recorded.done == [HEAD, "close"]


async def test_nothing_is_written_to_a_connection_that_was_aborted(
    transport: HeadsWithBodies, recorded: Recorded
) -> None:
    transport.write(HEAD)
    transport.abort()
    await asyncio.sleep(0)
    assert recorded.done == ["abort"]


async def test_a_server_sends_the_head_of_an_answer_whose_body_is_not_there_yet() -> None:
    go_on = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"body"})

    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    listener = Listener(application, bound)
    await listener.open()
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            go_on.set()
            assert await reader.readexactly(4) == b"body"
            writer.close()
            await writer.wait_closed()
    finally:
        await listener.close(seconds=1)
