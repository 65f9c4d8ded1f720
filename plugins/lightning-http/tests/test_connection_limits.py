"""What a connection may send before anything is known of it, and for how long it may keep a server waiting."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from http_fixtures import KEY
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_http.call import Limits

GET = b"GET /v1/agl/health? HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST = b"POST /v1/agl/queues/rollouts/enqueue HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def connected(url):
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            yield reader, writer
        finally:
            writer.close()


async def status_of(reader):
    return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def send_until_closed(reader, writer, piece):
    """Send a piece again and again; return how many bytes until the server closed the connection."""
    sent = 0
    try:
        while not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    "head", [GET + b"x: " + b"a" * 65_536, GET + b"x-y: abcdefgh\r\n" * 5_000, GET.replace(b"?", b"?" + b"a" * 65_536)]
)
async def test_a_head_of_more_than_64_kib_is_refused(server, head):
    async with connected(server.url) as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert await status_of(reader) == 431
        assert b"65,536 bytes" in await reader.read()
    async with connected(server.url) as (reader, writer):
        writer.write(GET + b"x: " + b"a" * 60_000 + b"\r\n\r\n")
        assert await status_of(reader) == 200


@pytest.mark.parametrize(
    "begin", [GET[:20], GET + b"x: ", GET, POST + b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\nx: "]
)
async def test_a_head_and_a_trailer_cannot_be_endless(server, begin):
    async with connected(server.url) as (reader, writer):
        writer.write(begin)
        assert await send_until_closed(reader, writer, b"x" * 100_000) < 30_000_000


async def test_small_requests_that_come_at_once_are_no_large_head(server):
    async with connected(server.url) as (reader, writer):
        writer.write((GET + b"\r\n") * 3_000)
        for _ in range(3_000):
            assert await status_of(reader) == 200
            await reader.readexactly(len(b'{"status":"ok"}'))


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        GET,
        GET + b"\r\n" + GET,
        POST + b"content-length: 10\r\n\r\n123",
        POST + b"transfer-encoding: chunked\r\n\r\n5",
    ],
)
async def test_a_request_that_does_not_come_whole_is_given_up(memory, begin):
    async with (
        LightningStoreServer(memory, limits=Limits(head_seconds=0.05, body_seconds=0.05)) as server,
        connected(server.url) as (reader, writer),
    ):
        writer.write(begin)
        answers = await reader.read()
        assert b" 408 Request Timeout\r\n" in answers
        assert b" within 0.05 s" in answers


@pytest.mark.parametrize("last", [b"", b"\r\n"])
async def test_an_idle_connection_is_closed(memory, last):
    async with (
        LightningStoreServer(memory, limits=Limits(idle_seconds=0.05)) as server,
        connected(server.url) as (reader, writer),
    ):
        writer.write(GET + b"\r\n")
        assert await status_of(reader) == 200
        writer.write(last)
        assert (await reader.read()).endswith(b'{"status":"ok"}')


async def test_a_request_that_has_come_may_wait_for_its_answer(memory):
    limits = Limits(head_seconds=0.01, body_seconds=0.01)
    async with LightningStoreServer(memory, limits=limits) as server, LightningStoreClient(server.url) as client:
        assert await client.dequeue_rollout(wait_seconds=0.1) is None


async def test_a_body_without_a_key_has_a_limit(memory):
    limits = Limits(max_body_bytes=1_000_000, body_seconds=0.1)
    async with LightningStoreServer(memory, key=KEY, limits=limits) as server:
        async with connected(server.url) as (reader, writer):
            writer.write(POST + b"transfer-encoding: chunked\r\n\r\n")
            assert await status_of(reader) == 401
            assert await send_until_closed(reader, writer, b"2710\r\n" + b"x" * 10_000 + b"\r\n") < 30_000_000
        async with connected(server.url) as (reader, writer):
            writer.write(POST + b"content-length: 900000\r\n\r\n")
            assert await status_of(reader) == 401
            writer.write(b"x" * 900_000 + GET + b"\r\n")  # the client that hears of its wrong key may go on
            await reader.readuntil(b"HTTP/1.1 200")
        async with connected(server.url) as (reader, writer):
            writer.write(POST + b"content-length: 900000\r\n\r\nxxx")
            assert await status_of(reader) == 401
            await reader.read()
