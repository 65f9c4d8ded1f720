"""Client, server and command take what agentlightning 0.3's take."""

import urllib.request

import aiohttp
import pytest
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_legacy.names import PythonServerLauncherArgs

from lightning_core.errors import ConfigError, StoreClosed, StoreError


def blocking_get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        body: bytes = answer.read()
    return body


async def test_a_client_is_made_with_0_3s_options_and_has_its_names(server, memory):
    with pytest.warns(DeprecationWarning, match="LightningStoreClient") as warned:
        client = LightningStoreClient(
            server_address=server.endpoint + "/",
            retry_delays=(0.1, 0.2),
            health_retry_delays=(0.1,),
            request_timeout=20.0,
            connection_timeout=5.0,
        )
    told = sorted(str(each.message).partition(")")[0] for each in warned)
    assert told == sorted(
        f"LightningStoreClient({name}="
        for name in ("server_address", "retry_delays", "health_retry_delays", "request_timeout", "connection_timeout")
    )
    assert client.server_address_root == server.endpoint
    assert client.server_address == f"{server.endpoint}/v1/agl"
    assert client.otlp_traces_endpoint() == f"{server.endpoint}/v1/traces"
    rollout = await client.enqueue_rollout("a")
    assert (await memory.get_rollout_by_id(rollout.rollout_id)) == rollout
    await client.close()
    await client.close()
    with pytest.raises(StoreClosed):
        await client.statistics()


@pytest.mark.parametrize("launch_mode", ["thread", "mp"])
async def test_a_server_in_a_thread_answers_while_the_loop_is_blocked(memory, launch_mode, unused_tcp_port):
    server = LightningStoreServer(memory, None, unused_tcp_port, None, launch_mode)
    await server.start()
    try:
        assert blocking_get(f"{server.endpoint}/v1/agl/health") == b'{"status":"ok"}'
        async with LightningStoreClient(server.endpoint) as client:
            await client.enqueue_rollout("a")
        assert (await memory.query_rollouts()).total == 1
    finally:
        await server.stop()
        await server.stop()
    with pytest.raises(OSError, match="refused"):
        blocking_get(f"{server.endpoint}/v1/agl/health")


async def test_a_server_takes_launcher_args_and_says_what_has_no_effect(memory):
    launcher_args = PythonServerLauncherArgs(launch_mode="asyncio", n_workers=2)
    with pytest.warns(DeprecationWarning, match="has no effect") as warned:
        server = LightningStoreServer(memory, launcher_args=launcher_args, n_workers=2)
    assert [str(each.message).partition(":")[0] for each in warned] == [
        "LightningStoreServer(n_workers=) has no effect",
    ]
    async with server, aiohttp.ClientSession() as session, session.get(f"{server.url}/v1/agl/health") as answer:
        assert answer.status == 200
    with pytest.raises(ConfigError, match="launch_mode is 'fork'; it is 'asyncio' or 'thread'"):
        LightningStoreServer(memory, launch_mode="fork")


def test_a_server_without_a_port_takes_0_3s(memory):
    assert LightningStoreServer(memory, None, None).endpoint == "http://127.0.0.1:4747"


@pytest.mark.parametrize(("allowed", "credentials"), [("https://board.example", "true"), ("*", None)])
async def test_a_page_of_a_named_origin_may_send_credentials(memory, allowed, credentials):
    origin = {"Origin": "https://board.example"}
    async with LightningStoreServer(memory, cors_allow_origins=allowed) as server, aiohttp.ClientSession() as session:
        url = f"{server.url}/v1/agl/health"
        async with session.get(url, headers=origin) as answer:
            assert answer.headers["access-control-allow-origin"] in (allowed, "*")
            assert answer.headers.get("access-control-allow-credentials") == credentials
        async with session.options(url, headers={**origin, "Access-Control-Request-Method": "GET"}) as answer:
            assert answer.status == 200
            assert answer.headers.get("access-control-allow-credentials") == credentials


async def test_ids_of_workers_are_one_part_of_a_path_and_what_is_below_them_is_not_there(server, client, ask):
    for worker_id in ("host-1", "a b-ü", "per%2Fcent"):
        assert (await client.update_worker(worker_id, {"cpu": 1})).worker_id == worker_id
        found = await client.get_worker_by_id(worker_id)
        assert found is not None
        assert found.heartbeat_stats == {"cpu": 1}
    status, _ = await ask("POST", f"{server.url}/v1/agl/workers/host-1/heartbeat", json={"cpu": 2})
    assert status == 404
    with pytest.raises(StoreError, match="no route POST '/v1/agl/workers/host/pid/1'"):
        await client.update_worker("host/pid/1", {})
    assert {each.worker_id for each in await server.store.query_workers()} == {"host-1", "a b-ü", "per%2Fcent"}
