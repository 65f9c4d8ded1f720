"""What a client says of a server that is out of reach, besides the error in the end."""

import asyncio
import json
import re
import time

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.errors import StoreUnavailable


async def test_an_outage_is_told_once_and_so_is_its_end(memory, caplog):
    async with LightningStoreServer(memory) as server:
        port = int(server.url.rpartition(":")[2])
        client = LightningStoreClient(server.url, retry_seconds=10, first_backoff_seconds=0.01)
        await client.enqueue_rollout("a")
    requests = [asyncio.create_task(client.statistics()) for _ in range(5)]
    while not caplog.messages:  # noqa: ASYNC110  # a log has nothing to wait for
        await asyncio.sleep(0.01)
    async with LightningStoreServer(memory, port=port):
        await asyncio.gather(*requests)
        await client.statistics()
    await client.aclose()
    first, second = caplog.messages
    url = rf"http://127\.0\.0\.1:{port}"
    assert re.fullmatch(rf"lightning\.store_out_of_reach url={url}: .+; each request is repeated for 10 s", first)
    assert re.fullmatch(rf"lightning\.store_reached_again url={url} after_seconds=\d\.\d", second)


@pytest.mark.parametrize("first", ["hangs up", "is silent"])
async def test_a_request_whose_first_try_fails_is_repeated_and_that_is_no_outage(caplog, first):
    connections = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if len(connections) > 1:
            writer.write(b"HTTP/1.1 200 OK\r\nx-agl-run: run-1\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
        if first == "hangs up":
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        # As by default, where both are 30 s: a try without an answer takes as long as the server may be out of reach.
        client = LightningStoreClient(url, request_seconds=0.5, retry_seconds=0.5, first_backoff_seconds=0.01)
        assert await client.statistics() == {}
        await client.aclose()
        for each in connections:
            each.close()
    assert len(connections) == 2
    assert caplog.messages == []


async def test_once_the_server_is_given_up_nothing_else_is_repeated_as_long_again(memory):
    async with LightningStoreServer(memory) as server:
        client = LightningStoreClient(server.url, retry_seconds=4.0, first_backoff_seconds=0.01)
        await client.statistics()
    with pytest.raises(StoreUnavailable):
        await client.statistics()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"was out of reach for [1-9]"):
        await client.statistics()
    assert time.monotonic() - began < 3.5
    await client.aclose()


async def test_a_wait_outlives_restarts_that_are_far_apart():
    asked: list[float] = []
    restarts = 2

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal restarts
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = re.findall(rb"content-length: (\d+)", head.lower())
        asked.append(json.loads(await reader.readexactly(int(length)))["poll_seconds"])
        status, extra = b"200 OK", b"x-agl-pending: true\r\n" if restarts else b""
        if restarts and asked[-1] > 1:
            await asyncio.sleep(1.2)  # longer than requests are repeated
            restarts -= 1
            status, extra = b"503 Service Unavailable", b""
        writer.write(
            b"HTTP/1.1 "
            + status
            + b"\r\nx-agl-run: run-1\r\n"
            + extra
            + b"connection: close\r\ncontent-length: 2\r\n\r\n[]"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = LightningStoreClient(url, retry_seconds=1.0, first_backoff_seconds=0.01)
        assert await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=60) == []
        await client.aclose()
    assert asked == [50, 1, 50, 1]
