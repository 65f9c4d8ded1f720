"""What is wrong with a request is said in the answer, and raised by the client as the store itself would."""

import json
import logging
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_http.call import Limits

from lightning_core.errors import InvalidRequest, InvalidTransition, NotFound, StoreError, StoreFull, StoreUnavailable
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import EnqueueRolloutRequest


@pytest.mark.parametrize("path", ["rollouts/ro-none/attempts/latest", "workers/w-none", "resources/rs-none"])
async def test_what_an_unknown_id_has_is_null(server, ask, path):
    assert await ask("GET", f"{server.url}/v1/agl/{path}") == (200, None)


@pytest.mark.parametrize("field", ["status", "worker_id", "last_heartbeat_time"])
async def test_a_null_field_of_an_attempt_is_400_and_changes_nothing(server, ask, memory, field):
    started = await memory.start_rollout("a", worker_id="w-1")
    url = f"{server.url}/v1/agl/rollouts/{started.rollout_id}/attempts/latest"
    status, answer = await ask("POST", url, json={field: None, "metadata": {"a": 1}})
    assert (status, answer["error"]) == (400, "InvalidRequest")
    assert field in answer["message"]
    assert await memory.get_latest_attempt(started.rollout_id) == started.attempt


async def test_an_unknown_route_is_404_and_a_wrong_method_405(server, ask):
    status, answer = await ask("GET", f"{server.url}/v1/agl/rollout")
    assert (status, answer["error"]) == (404, "UnknownRoute")
    status, answer = await ask("GET", f"{server.url}/v1/agl/statistics/")
    assert (status, answer["error"]) == (404, "UnknownRoute")
    status, answer = await ask("DELETE", f"{server.url}/v1/agl/spans")
    assert (status, answer["message"]) == (405, "this store has no route DELETE '/v1/agl/spans'; see /openapi.json")


@pytest.mark.parametrize(
    ("path", "body", "place", "message"),
    [
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1, "mode": "exam"}]}, ["rollouts", 0, "mode"], "'exam'"),
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1}, {}]}, ["rollouts", 1, "input"], "Field required"),
        ("queues/rollouts/enqueue", {}, ["rollouts"], "rollouts: Field required"),
        ("queues/rollouts/dequeue", {"limit": "many"}, ["limit"], "limit is 'many'"),
        ("queues/rollouts/dequeue", {"wait_seconds": -1}, ["wait_seconds"], "wait_seconds is -1"),
        ("waits/rollouts", {"rollout_ids": "ro-1"}, ["rollout_ids"], "rollout_ids is 'ro-1'"),
        ("spans", {"rollout_id": "a"}, ["attempt_id"], "attempt_id: Field required"),
        (
            "spans/bulk",
            {"spans": [{"rollout_id": "a"}]},
            ["spans", 0, "attempt_id"],
            "spans.0.attempt_id: Field required",
        ),
        ("spans/bulk", {"spans": 5}, ["spans"], "spans is 5"),
        ("spans/bulk", [1], [], "it is"),
    ],
)
async def test_a_wrong_body_is_422_and_the_field_is_named(server, ask, path, body, place, message):
    status, answer = await ask("POST", f"{server.url}/v1/agl/{path}", json=body)
    assert (status, answer["error"]) == (422, "InvalidRequest")
    assert answer["detail"][0]["loc"] == ["body", *place]
    assert message in answer["message"]


@pytest.mark.parametrize("body", [b"{", b'"\\ud800"', b"[" * 100_000, b"\xff\xfe", b"null", b""])
async def test_a_body_that_is_no_json_is_refused(server, ask, body):
    for path in ("queues/rollouts/enqueue", "spans/bulk", "resources"):
        headers = {"content-type": "application/json"}
        status, answer = await ask("POST", f"{server.url}/v1/agl/{path}", data=body, headers=headers)
        assert status in (400, 422)
        assert answer["error"] == "InvalidRequest"


async def test_a_query_is_refused_with_what_it_may_be(server, ask):
    status, answer = await ask("GET", f"{server.url}/v1/agl/rollouts?sort_by=statu")
    assert status == 400
    assert "cannot sort Rollouts by 'statu'" in answer["message"]
    status, answer = await ask("GET", f"{server.url}/v1/agl/rollouts?limit=x")
    assert status == 422
    assert "limit is 'x'" in answer["message"]


async def test_a_body_of_another_type_is_415(server, ask):
    # A page in a browser can send these without being asked.
    status, answer = await ask("POST", f"{server.url}/v1/agl/queues/rollouts/dequeue", data=b"{}")
    assert status == 415
    assert "application/json" in answer["message"]


async def test_a_store_that_fails_says_so_without_a_traceback(server, ask, memory, monkeypatch, caplog):
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret of the database")

    monkeypatch.setattr(memory, "statistics", broken)
    with caplog.at_level(logging.ERROR):
        status, answer = await ask("GET", f"{server.url}/v1/agl/statistics")
    assert status == 500
    assert answer["error"] == "InternalError"
    assert "secret" not in json.dumps(answer)
    assert "lightning.store_request_failed" in caplog.text
    assert "secret of the database" in caplog.text  # the log is for who runs the server
    async with LightningStoreClient(server.url) as client:
        with pytest.raises(StoreError, match="answered 500: the store failed; its log says why"):
            await client.statistics()


async def test_errors_come_back_as_the_types_and_words_of_the_store(memory):
    class Full(InMemoryLightningStore):
        async def enqueue_many_rollouts(self, rollouts, **options):
            raise StoreFull("there is no room left")

    memory = Full(run_id="run-1")
    async with LightningStoreServer(memory) as server, LightningStoreClient(server.url) as client:
        started = await client.start_rollout("a")
        await client.update_attempt(started.rollout_id, "latest", status="succeeded")
        for call in (
            lambda store: store.update_attempt(started.rollout_id, "at-none", status="failed"),
            lambda store: store.start_attempt(started.rollout_id),
            lambda store: store.update_rollout("ro-none", status="failed"),
            lambda store: store.update_rollout(started.rollout_id, mode="exam"),
            lambda store: store.update_rollout(started.rollout_id, config="fast"),
            lambda store: store.enqueue_rollout("a", metadata="x"),
            lambda store: store.add_resources({"a": 1}),
            lambda store: store.save_state("apo", {1, 2}),
            lambda store: store.query_workers(sort_by="worker"),
            lambda store: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(3)]),
        ):
            with pytest.raises(StoreError) as in_process:
                await call(memory)
            with pytest.raises(StoreError) as over_http:
                await call(client)
            assert type(over_http.value) is type(in_process.value)
            assert type(over_http.value) in (NotFound, InvalidTransition, InvalidRequest, StoreFull)
            assert str(over_http.value) == str(in_process.value)


async def test_what_json_cannot_hold_is_refused_by_the_client(client):
    with pytest.raises(InvalidRequest, match="cannot be sent as JSON"):
        await client.enqueue_rollout(object())


async def test_a_rollout_that_json_cannot_hold_fails_and_the_next_is_given(memory, client):
    # Whoever has the store in process can enqueue anything.
    odd = await memory.enqueue_rollout({"task": [object()]})
    fine = await memory.enqueue_rollout({"task": ["a"]})
    claimed = await client.dequeue_many_rollouts(limit=2)
    assert [item.rollout_id for item in claimed] == [fine.rollout_id]
    assert (await memory.get_rollout_by_id(odd.rollout_id)).status == "failed"
    attempt = await memory.get_latest_attempt(odd.rollout_id)
    assert "the rollout has no form in JSON" in attempt.metadata["failure"]["message"]


async def test_a_body_is_read_only_where_one_is_taken(memory, server, ask):
    queued = await memory.enqueue_rollout("a")
    path = f"{server.url}/v1/agl/rollouts/{queued.rollout_id}/attempts"
    status, answer = await ask("POST", path, data=b"", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (status, answer["status"]) == (201, "preparing")


async def test_numbers_that_json_does_not_have_come_back(client):
    rollout = await client.enqueue_rollout({"scores": [float("inf"), -float("inf")], "nan": float("nan")})
    assert rollout.input["scores"] == [float("inf"), -float("inf")]
    assert rollout.input["nan"] != rollout.input["nan"]


async def test_an_outage_is_an_error_that_says_so(memory):
    async with LightningStoreServer(memory) as server:
        url = server.url
        client = LightningStoreClient(url, retry_seconds=0.2, first_backoff_seconds=0.01)
        await client.enqueue_rollout("a")
    for call in (client.dequeue_rollout(), client.get_rollout_by_id("ro-1"), client.dequeue_rollout(wait_seconds=5)):
        with pytest.raises(StoreUnavailable, match=rf"the store at {url} was out of reach for [0-3]\.\d s"):
            await call
    await client.aclose()


async def test_bodies_and_pages_have_a_limit(memory, ask, monkeypatch):
    limits = Limits(max_body_bytes=2000)
    async with LightningStoreServer(memory, limits=limits) as server:
        url = f"{server.url}/v1/agl"
        status, answer = await ask("POST", f"{url}/resources", json={"x": "y" * 3000})
        assert (status, answer["error"]) == (413, "InvalidRequest")
        assert "takes at most 2000" in answer["message"]

        async def chunks():
            for _ in range(30):
                yield b" " * 100

        headers = {"content-type": "application/json"}
        status, _ = await ask("POST", f"{url}/resources", data=chunks(), headers=headers)
        assert status == 413
        await memory.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(12)])
        status, answer = await ask("GET", f"{url}/rollouts?limit=10001")
        message = "limit is '10001': Input should be less than or equal to 10000"
        assert (status, answer["message"]) == (422, message)
        monkeypatch.setattr("lightning_http.routes.MAX_PAGE", 5)
        status, answer = await ask("GET", f"{url}/rollouts")
        assert status == 400
        assert "12 match; a page of this store holds at most 5" in answer["message"]
        async with LightningStoreClient(server.url, page_size=5) as client:
            for query, expected in (({}, range(12)), ({"limit": 7, "offset": 2}, range(2, 9)), ({"limit": 0}, ())):
                page = await client.query_rollouts(**query)
                assert [rollout.input for rollout in page] == list(expected)
                assert page.total == 12


async def test_an_enqueue_and_a_claim_have_a_limit_that_the_client_keeps(memory, server, ask):
    url = f"{server.url}/v1/agl/queues/rollouts"
    status, answer = await ask("POST", f"{url}/enqueue", json={"rollouts": [{"input": 0}] * 10_001})
    assert status == 422
    assert answer["message"].endswith(": List should have at most 10000 items after validation, not 10001")
    for limit in (1_001, 2**53):
        status, answer = await ask("POST", f"{url}/dequeue", json={"limit": limit})
        assert (status, answer["message"]) == (
            422,
            f"limit is {limit}: Input should be less than or equal to 1000",
        )
    async with LightningStoreClient(server.url) as client:
        requests = [EnqueueRolloutRequest(input=number) for number in range(10_002)]
        rollouts = await client.enqueue_many_rollouts(requests, request_id="r-1")
        assert [rollout.input for rollout in rollouts] == list(range(10_002))
        again = await client.enqueue_many_rollouts(requests[10_000:], request_id="r-1/1")  # a part sent once more
        assert [rollout.rollout_id for rollout in again] == [rollout.rollout_id for rollout in rollouts[10_000:]]
        assert [claimed.input for claimed in await client.dequeue_many_rollouts(limit=10_002)] == list(range(1_000))
        assert await client.enqueue_many_rollouts([]) == []


@pytest.mark.parametrize("name", ["lightning.run", "lightning.served", "lightning.x"])
async def test_the_stores_own_state_cannot_be_replaced(client, memory, name):
    with pytest.raises(InvalidRequest, match=f"the name {name!r} begins with 'lightning.', which is the store's own"):
        await client.save_state(name, 5)
    await client.enqueue_rollout("a")
    assert (await client.dequeue_rollout()).input == "a"
    with pytest.raises(InvalidRequest, match=r"call end_run or begin_run"):
        await memory.save_state("lightning.run", 5)


async def test_a_packed_body_is_unpacked_up_to_the_limit(memory, ask):
    import gzip

    async with LightningStoreServer(memory, limits=Limits(max_body_bytes=10_000)) as server:
        url = f"{server.url}/v1/agl/queues/rollouts/enqueue"
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        packed = gzip.compress(b'{"rollouts": [{"input": 1}]}')
        assert (await ask("POST", url, data=packed, headers=headers))[0] == 201
        bomb = gzip.compress(b" " * 50_000_000)
        assert (await ask("POST", url, data=bomb[:9_000] if len(bomb) > 9_000 else bomb, headers=headers))[0] == 413
        for wrong in (packed[:-10], b"nothing", packed + b"something else", packed + gzip.compress(b"  ")):
            assert (await ask("POST", url, data=wrong, headers=headers))[0] == 400
        assert (await memory.query_rollouts()).total == 1
        headers["content-encoding"] = "br"
        assert (await ask("POST", url, data=packed, headers=headers))[0] == 415


@asynccontextmanager
async def client_of_another(status, content_type, text):
    async def other(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type=content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = LightningStoreClient(f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield client
    await client.aclose()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "content_type", "text"),
    [
        (404, "text/plain", "nothing here"),
        (200, "text/html", "<html>hello</html>"),
        (200, "application/json", '{"hello": "there"}'),
    ],
)
async def test_something_else_on_the_port_is_told_apart(status, content_type, text):
    async with client_of_another(status, content_type, text) as client:
        for call in (client.dequeue_rollout(), client.statistics(), client.dequeue_rollout(wait_seconds=5)):
            with pytest.raises(StoreError, match=f"answered {status}: '{text}'; is it a Lightning store"):
                await call


async def test_a_gateway_that_takes_smaller_requests_than_the_store_refuses_one_and_is_no_outage():
    async with client_of_another(413, "text/html", "<html>413 Request Entity Too Large</html>") as client:
        for call in (client.add_many_spans([]), client.enqueue_rollout("x")):
            with pytest.raises(InvalidRequest, match="413 Request Entity Too Large"):
                await call
