"""A server from its start to its stop, in a loop or in a thread; and clients in many loops, threads and processes."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import socket
import threading
import time
import urllib.request
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from itertools import chain
from typing import Any

import psutil
import pytest
from lightning_http import (
    LightningStoreClient,
    LightningStoreServer,
    listener as listener_module,
    server as server_module,
)

from lightning_core.concurrency import EventLoopThread
from lightning_core.errors import ConfigError, StoreClosed, StoreError, StoreUnavailable
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.types import EnqueueRolloutRequest


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


async def test_a_server_runs_for_a_block_and_leaves_nothing(memory, nothing_left_running):
    async with LightningStoreServer(memory) as server:
        assert server.url.startswith("http://127.0.0.1:")
        async with LightningStoreClient(server.url) as client:
            assert client.run_id == "run-1"
            await client.enqueue_rollout("a")
    assert (await memory.query_rollouts()).total == 1  # the store is open
    with socket.socket() as again:
        again.bind(("127.0.0.1", int(server.url.rpartition(":")[2])))


async def test_a_start_that_is_cancelled_leaves_nothing(memory, nothing_left_running):
    for turns in range(12):  # of the event loop: from before the port is bound until after it is open
        server = LightningStoreServer(memory)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
        await server.stop()
        assert not [each for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]


async def test_a_connection_that_is_accepted_while_the_server_stops_is_closed(memory):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for turns in range(5):  # of the event loop: one of them is the moment between accepting and knowing
            async with LightningStoreServer(memory) as server:
                with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))):
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await server.stop()
            gc.collect()
    assert [str(each.message) for each in told] == []


async def test_a_stopped_server_can_be_started_again_at_its_place(memory):
    server = LightningStoreServer(memory)
    with pytest.raises(StoreError, match="the port is not chosen yet"):
        _ = server.url
    await server.start()
    url = server.url
    with pytest.raises(StoreError, match=f"this server runs already, at {url}"):
        await server.start()
    async with LightningStoreClient(url) as client:
        await server.stop()
        await server.stop()
        waiting = asyncio.create_task(client.enqueue_rollout("a"))
        await server.start()
        assert server.url == url
        assert (await waiting).input == "a"
    await server.stop()


async def test_stopping_ends_waits_and_finishes_requests(memory, nothing_left_running):
    async with LightningStoreServer(memory) as server:
        client = LightningStoreClient(server.url, retry_seconds=0.1, first_backoff_seconds=0.01)
        rollout = await client.enqueue_rollout("a")
        await client.dequeue_rollout()
        waits = [
            asyncio.create_task(client.dequeue_rollout(wait_seconds=None)),
            asyncio.create_task(client.wait_for_rollouts(rollout_ids=[rollout.rollout_id])),
        ]
        await asyncio.to_thread(fetch, server.url + "/v1/agl/health")  # the server has turned since
    for wait in waits:
        with pytest.raises(StoreUnavailable, match="out of reach"):
            await wait
    await client.aclose()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_occupied_port_is_named(memory, in_thread):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = LightningStoreServer(memory, port=port)
        with pytest.raises(
            ConfigError, match=f"cannot serve on port {port} of 127.0.0.1: Address already in use; give"
        ):
            await (asyncio.to_thread(server.__enter__) if in_thread else server.start())
    await server.start()  # the port is free now
    await server.stop()


def test_a_caller_without_an_event_loop_serves_from_a_thread():
    before = set(threading.enumerate())
    memory = InMemoryLightningStore(run_id="run-1")
    with LightningStoreServer(memory) as server:
        assert fetch(server.url + "/v1/agl/health") == b'{"status":"ok"}'

        async def use() -> Any:
            async with LightningStoreClient(server.url) as client:
                return await client.enqueue_rollout("a")

        rollout = asyncio.run(use())
        assert asyncio.run(memory.get_rollout_by_id(rollout.rollout_id)) == rollout
    assert not set(threading.enumerate()) - before


def test_a_store_for_one_thread_is_not_served_from_another():
    class OneThread(InMemoryLightningStore):
        @property
        def capabilities(self):
            return {"async_safe": True}

    with pytest.raises(ConfigError, match="OneThread is not thread_safe"), LightningStoreServer(OneThread()):
        pass


# Clients


async def test_a_client_works_in_many_loops_and_threads(server, client):
    await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(60)])

    def work() -> list[int]:
        async def take() -> list[int]:
            taken = []
            while (claimed := await client.dequeue_rollout()) is not None:
                taken.append(claimed.input)
            return taken

        return asyncio.run(take()) + asyncio.run(take())

    taken = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    assert sorted(chain.from_iterable(taken)) == list(range(60))
    assert len(client._connection._sessions._of_loop) <= 5
    gc.collect()  # a connection that nobody closed would warn


async def test_closing_a_client_closes_its_connections_in_other_loops(server, client):
    connected, ended = threading.Event(), []

    async def wait() -> None:
        await client.statistics()
        connected.set()
        try:
            await client.dequeue_rollout(wait_seconds=None)
        except StoreClosed as exc:
            ended.append(str(exc))

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    await asyncio.to_thread(connected.wait, 20)
    await client.aclose()
    await asyncio.to_thread(thread.join, 20)
    assert ended == ["the store of run run-1 is closed"]


async def test_a_pickled_client_is_another_one_for_the_same_run(guarded):
    async with LightningStoreClient(guarded.url, key="the-algorithms-key", run_id="run-2") as client:
        rollout = await client.enqueue_rollout("a")
        copy = pickle.loads(pickle.dumps(client))
    assert (await copy.dequeue_rollout()).rollout_id == rollout.rollout_id
    await copy.aclose()
    copy = pickle.loads(pickle.dumps(guarded))
    assert (type(copy), copy.run_id) == (LightningStoreClient, "run-1")
    assert await copy.dequeue_rollout() is None
    await copy.aclose()


def claim_in_child(store: Any, results: Any) -> None:
    async def claim() -> list[int]:
        claimed = []
        while (item := await store.dequeue_rollout("child")) is not None:
            claimed.append(item.input)
        return claimed

    results.send((os.getpid(), asyncio.run(claim())))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("what", ["client", "server"])
async def test_a_store_is_used_in_another_process(server, client, method, what):
    await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)])
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=claim_in_child, args=(client if what == "client" else server, there))
    child.start()
    pid, claimed = await asyncio.to_thread(here.recv)
    await asyncio.to_thread(child.join)
    assert child.exitcode == 0
    assert (pid, claimed) == (child.pid, [0, 1, 2])
    assert await client.dequeue_rollout() is None  # the connection of this process is as it was
    here.close()
    there.close()
    child.close()


async def test_a_client_knows_the_leases_of_its_server_from_the_first_answer_on():
    with LightningStoreServer(InMemoryLightningStore(lease_seconds=4.5)) as server:
        assert server.lease_seconds == 4.5
        client = LightningStoreClient(server.url)
        assert client.lease_seconds is None
        async with client:
            assert client.lease_seconds == 4.5
            assert client.for_run("another-run").lease_seconds == 4.5


async def test_a_long_wait_is_several_requests(memory):
    async with (
        LightningStoreServer(memory) as server,
        LightningStoreClient(server.url, poll_seconds=0.05) as client,
    ):

        async def until_answered(path: str, times: int) -> None:
            start = f'agl_http_total{{method="POST",path="/v1/agl{path}",status="200"}} '
            async with asyncio.timeout(20):
                counted = 0
                while counted < times:
                    scrape = (await asyncio.to_thread(fetch, server.url + "/metrics")).decode()
                    counted = sum(float(each.removeprefix(start)) for each in scrape.splitlines() if start in each)

        began = time.monotonic()
        assert await client.dequeue_rollout(wait_seconds=0.3) is None
        assert 0.29 < time.monotonic() - began < 20
        started = await client.start_rollout("b")
        assert list(await client.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0.2)) == []
        without_limit = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        waiter = asyncio.create_task(client.dequeue_rollout(wait_seconds=None))
        await until_answered("/queues/rollouts/dequeue", 9)  # 6 at most were for the 0.3 s
        await until_answered("/waits/rollouts", 7)  # 4 at most were for the 0.2 s
        assert not without_limit.done()
        await client.update_rollout(started.rollout_id, status="cancelled")
        assert [ended.rollout_id for ended in await without_limit] == [started.rollout_id]
        rollout = await client.enqueue_rollout("a")
        assert (await waiter).rollout_id == rollout.rollout_id


async def test_a_wait_that_nobody_waits_for_any_more_claims_nothing(memory, ask):
    clock = FakeClock()
    memory = InMemoryLightningStore(clock=clock)
    async with LightningStoreServer(memory) as server:
        client = LightningStoreClient(server.url)
        waiter = asyncio.create_task(client.dequeue_rollout(wait_seconds=100))
        await clock.until_waiting()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await client.statistics()
        gone = "agl_http_in_flight 1.0"
        # The server learns of it when it reads from the connection, which is not when the client has left it.
        while gone not in (await ask("GET", server.url + "/metrics"))[1].decode():
            continue
        rollout = await client.enqueue_rollout("a")
        assert (await client.dequeue_rollout()).rollout_id == rollout.rollout_id
        await client.aclose()


async def test_ids_may_have_any_characters(client):
    from lightning_core.types import PromptTemplate

    for name in ("a/b", "a b", "ä?#%2F", "../up"):
        worker_id = name.replace("/", "-")
        assert (await client.update_worker(worker_id)).worker_id == worker_id
        assert (await client.get_worker_by_id(worker_id)).worker_id == worker_id
        await client.update_resources(name, {"p": PromptTemplate(template=name)})
        assert (await client.get_resources_by_id(name)).resources_id == name
        await client.save_state(name, name)
        assert await client.load_state(name) == name
        assert await client.get_rollout_by_id(worker_id) is None


async def test_a_peer_that_does_not_read_its_answer_holds_up_no_stop(memory, monkeypatch, nothing_left_running):
    monkeypatch.setattr(server_module, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(listener_module, "_FLUSH_SECONDS", 0.1)
    await memory.enqueue_rollout("a" * 20_000_000)
    async with LightningStoreServer(memory) as server:
        port = int(server.url.rpartition(":")[2])
        connections = server._listener.server_state.connections
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(b"GET /v1/agl/rollouts HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            first = await asyncio.to_thread(peer.recv, 1)
            assert (first, len(connections)) == (b"H", 1)
            await asyncio.wait_for(server.stop(), 20)
            assert len(connections) == 0


def test_a_server_in_a_thread_that_cannot_begin_says_so(memory, monkeypatch, nothing_left_running):
    def no_loop() -> Any:
        raise OSError("too many open files")

    monkeypatch.setattr(server_module, "loop_factory", lambda: no_loop)
    with pytest.raises(OSError, match="too many open files"), LightningStoreServer(memory):
        pass


def test_an_interrupt_while_a_server_opens_in_a_thread_leaves_no_thread(memory, monkeypatch, nothing_left_running):
    class Interrupted(EventLoopThread):
        def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
            super().submit(coroutine).result(timeout=20)
            interrupted: Future[Any] = Future()
            interrupted.set_exception(KeyboardInterrupt())
            return interrupted

    monkeypatch.setattr(server_module, "EventLoopThread", Interrupted)
    with pytest.raises(KeyboardInterrupt), LightningStoreServer(memory):
        pass
