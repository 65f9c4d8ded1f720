"""A server that is killed and comes back: nobody who waits is lost. That all it acknowledged is there,
`tests/chaos/test_killed_mongod.py` tells.
"""

import asyncio
from contextlib import suppress
from typing import cast

import pytest
from lightning_mongo import MongoLightningStore
from lightning_mongo.testing import Mongod

from lightning_core.errors import StoreUnavailable

PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("needs_mongod")


@pytest.mark.slow
@pytest.mark.parametrize("replica_set", [False, True], ids=["standalone", "replica set"])
async def test_whoever_waits_waits_on_through_a_restart(replica_set: bool) -> None:
    with Mongod(replica_set=replica_set) as mongod:
        one, other = [MongoLightningStore(mongod.uri, run_id="run-1") for _ in range(2)]
        waiting = asyncio.create_task(one.dequeue_rollout("w", wait_seconds=None))
        await other.enqueue_rollout("before")
        assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) is not None
        waiting = asyncio.create_task(one.dequeue_rollout("w", wait_seconds=None))
        await one.statistics()
        mongod.kill()
        queued = asyncio.create_task(other.enqueue_rollout("after"))
        await asyncio.to_thread(mongod.start)
        await asyncio.wait_for(queued, PATIENCE_SECONDS)
        claimed = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert claimed is not None
        assert claimed.input == "after"
        for store in (one, other):
            await store.aclose()


async def test_a_server_that_stays_away_is_a_fault_in_time() -> None:
    with Mongod() as mongod:
        store = MongoLightningStore(mongod.uri, retry_seconds=0.2, connect_seconds=1.0)
        waiting = asyncio.create_task(store.dequeue_rollout("w", wait_seconds=None))
        await store.enqueue_rollout("a")
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        mongod.kill()
        with pytest.raises(StoreUnavailable, match=r"mongodb://127.0.0.1:\d+ could not be reached for 0.2 s"):
            await asyncio.wait_for(store.enqueue_rollout("b"), PATIENCE_SECONDS)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.dequeue_rollout("w", wait_seconds=None), PATIENCE_SECONDS)
        await store.aclose()


async def test_a_close_does_not_wait_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_core.store.facade.CLOSE_SECONDS", 0.1)
    with Mongod() as mongod:
        store = MongoLightningStore(mongod.uri, retry_seconds=1000, connect_seconds=0.2)
        await store.enqueue_rollout("a")
        mongod.kill()
        asked = asyncio.create_task(store.enqueue_rollout("b"))
        await asyncio.sleep(0)
        await asyncio.wait_for(store.aclose(), PATIENCE_SECONDS)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(asked, PATIENCE_SECONDS)


async def test_writes_go_on_when_a_new_connection_breaks_off() -> None:
    to_break = 0

    relays: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal to_break
        relays.add(cast("asyncio.Task[None]", asyncio.current_task()))
        writers = [writer]
        try:
            if to_break:
                to_break -= 1
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", mongod.port)
            writers.append(to_server)
            await asyncio.gather(pass_on(reader, to_server), pass_on(from_server, writer))
        finally:
            for each in writers:
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    with Mongod() as mongod:
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            options = {"maxIdleTimeMS": 1}  # each request has a new connection
            store = MongoLightningStore(
                f"mongodb://{host}:{port}", run_id="run-1", poll_milliseconds=60_000, client_options=options
            )
            await store.enqueue_rollout("a")
            await asyncio.sleep(0.01)  # its connection is then too old
            to_break = 1
            async with asyncio.timeout(PATIENCE_SECONDS):
                await store.enqueue_rollout("b")
            assert to_break == 0
            assert (await store.statistics())["total_rollouts"] == 2
            await store.aclose()
            for each in relays:
                each.cancel()
            await asyncio.gather(*relays, return_exceptions=True)
