"""What the live page asks its server for, and who may."""

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import pytest
from lightning_http.auth import Keys
from lightning_http.server import LightningStoreServer
from lightning_viewer import traces
from live_stores import HOSTILE, KEY, RUNNER_KEY, SECONDS, ask, converse, next_event, reward_span, work

from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import Span


async def test_the_page_needs_no_key_and_the_data_do(store: LightningStore) -> None:
    async with LightningStoreServer(store, key=KEY, runner_key=RUNNER_KEY) as server:
        status, page = await ask(server, "/")
        assert status == 200
        assert HOSTILE not in page
        assert "waits" not in page
        for path in ("run", "rollouts", "workers", "events", "samples?before=0&after=1"):
            status, told = await ask(server, f"/ui/{path}")
            assert (status, told["error"]) == (401, "AccessDenied"), path
        status, _ = await ask(server, "/ui/rollouts", key=RUNNER_KEY)
        assert status == 200


async def test_only_the_algorithms_key_acts(store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    async with LightningStoreServer(store, key=KEY, runner_key=RUNNER_KEY) as server:
        path = f"/ui/rollouts/{waiting.rollout_id}/cancel"
        status, told = await ask(server, path, key=RUNNER_KEY, method="POST")
        assert (status, told["message"]) == (403, "this key cannot do that; it takes the key of algorithms")
        of_attempt = Keys(KEY).mint(store.run_id, waiting.rollout_id, "at-x", 0.0, expires=False)
        for asked in ("/ui/rollouts", f"/ui/rollouts/{waiting.rollout_id}/trace"):
            status, told = await ask(server, asked, key=of_attempt)
            assert (status, told["error"]) == (403, "AccessDenied"), asked
        status, told = await ask(server, path, key=KEY, method="POST")
        assert (status, told["status"]) == (200, "cancelled")
        status, told = await ask(server, path.replace("cancel", "requeue"), key=KEY, method="POST")
        assert status == 409


async def test_a_page_of_another_site_cannot_act(server: LightningStoreServer, store: LightningStore) -> None:
    [waiting] = await store.query_rollouts(status_in=["queuing"])
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    path = f"/ui/rollouts/{waiting.rollout_id}/cancel"
    status, told = await ask(server, path, method="POST", headers=headers)
    assert (status, told["error"]) == (403, "AccessDenied")
    [waiting] = await store.query_rollouts(status_in=["queuing"])


async def test_the_page_may_ask_its_own_server_and_nothing_else(server: LightningStoreServer) -> None:
    async with aiohttp.ClientSession() as session, session.get(server.url) as answer:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (await answer.text()).count(policy.removesuffix("; frame-ancestors 'none'")) == 1


@pytest.mark.parametrize(
    ("query", "rewards"),
    [
        ("order=worst&status=succeeded&limit=2", [0.0, 0.0]),
        ("version=1&order=oldest", [1.0, 0.0, 0.5, None]),
        ("from=0.4&to=0.6&mode=val&text=owned", [0.5, 0.5]),
        ("order=oldest&limit=2&offset=5", [0.5, None]),
    ],
)
async def test_rollouts_are_filtered_sorted_and_paged(
    server: LightningStoreServer, query: str, rewards: list[float | None]
) -> None:
    status, told = await ask(server, f"/ui/rollouts?{query}")
    assert status == 200
    assert [each["reward"] for each in told["rollouts"]] == rewards
    assert told["all"] == 7


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("rollouts?limit=-1", 400, "limit is '-1': Input should be greater than or equal to 0"),
        ("rollouts?order=odd", 400, "order is 'odd': Input should be 'worst', 'best', 'newest', 'oldest' or 'slowest'"),
        ("rollouts?status=bogus", 400, "status is 'bogus': Input should be 'queuing', "),
        ("rollouts?to=nan", 400, "to is 'nan': Input should be a finite number"),
        ("rollouts/ro-none", 404, "has no rollout 'ro-none'"),
        ("rollouts/ro-none/trace", 404, "has no rollout 'ro-none'"),
        ("samples?before=0", 400, "after is {'before': '0'}: Field required"),
    ],
)
async def test_what_cannot_be_answered_says_why(
    server: LightningStoreServer, path: str, status: int, message: str
) -> None:
    found, told = await ask(server, f"/ui/{path}")
    assert found == status
    assert message in told["message"]


async def test_changes_are_told_as_they_come_and_once(server: LightningStoreServer, store: LightningStore) -> None:
    _, run = await ask(server, "/ui/run")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/ui/events?after={run['revision']}") as answer,
    ):
        await store.enqueue_rollout({"question": "new"})
        revision = await next_event(answer, after=run["revision"])
        await work(store, 1.0)
        shown: list[str] = []
        while shown != ["succeeded", "queuing"]:
            revision = await next_event(answer, after=revision)
            _, page = await ask(server, "/ui/rollouts?order=oldest&offset=6")
            shown = [each["status"] for each in page["rollouts"]]


async def test_a_server_that_stops_ends_the_streams(store: LightningStore) -> None:
    server = LightningStoreServer(store, key="")
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ui/events") as answer:
        await next_event(answer)
        async with asyncio.timeout(SECONDS):
            await server.stop()
            while await answer.content.readline():
                pass


async def test_a_server_that_stopped_listens_to_its_store_no_more() -> None:
    class Watched(InMemoryLightningStore):
        listeners = 0

        def watch(self, listener: Callable[[str], None]) -> Callable[[], None]:
            self.listeners += 1
            return functools.cache(self.leave)

        def leave(self) -> None:
            self.listeners -= 1

    store = Watched()
    async with LightningStoreServer(store, key="") as server:
        await ask(server, "/ui/run")
        await ask(server, "/ui/rollouts")
        assert store.listeners == 1
    assert store.listeners == 0
    await store.aclose()


async def test_a_call_has_the_engines_tokens_and_its_place_in_a_training_row(
    server: LightningStoreServer, store: LightningStore
) -> None:
    rollout_id = await converse(store, [([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6, 7], [8]), ([1, 9], [10])])
    _, trace = await ask(server, f"/ui/rollouts/{rollout_id}/trace")
    assert trace["rows"] == [{"trained": 3, "masked": 5}, {"trained": 1, "masked": 2}]
    first, *others = [each["tokens"] for each in trace["calls"]]
    engine = {"prompt": 3, "response": 2, "ids": [4, 5], "logprobs": [-0.5, -0.5]}
    assert first == {**engine, "row": 1, "goes_on": False, "masked": 3, "before": [1, 2, 3], "why": None}
    places = [[each[name] for name in ("row", "goes_on", "masked", "before")] for each in others]
    assert places == [[1, True, 2, [6, 7]], [2, False, 2, [1, 9]]]


async def test_a_call_that_is_in_no_training_row_says_why(server: LightningStoreServer, store: LightningStore) -> None:
    failed = await converse(store, [([1, 2], [3])], error="timeout")
    _, trace = await ask(server, f"/ui/rollouts/{failed}/trace")
    assert trace["rows"] == []
    assert "it failed" in trace["calls"][0]["tokens"]["why"]
    broken = await converse(store, [([1, 2], [3])], reward="much")
    _, trace = await ask(server, f"/ui/rollouts/{broken}/trace")
    assert (trace["rows"], trace["calls"][0]["tokens"]["row"]) == ([], None)
    assert "much" in trace["calls"][0]["tokens"]["why"]


async def test_a_rollout_of_many_spans_is_read_in_parts_and_not_in_the_servers_event_loop(
    server: LightningStoreServer, store: LightningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await store.start_rollout("many")
    span = reward_span(started.rollout_id, started.attempt.attempt_id, 1.0)
    await store.add_many_spans([span.model_copy(update={"span_id": f"{number:016x}"}) for number in range(5_000)])
    limits, threads = list[object](), set[int]()
    query, build = store.query_spans, traces.read_model_calls

    async def query_spans(*args: Any, **options: Any) -> Any:
        limits.append(options.get("limit"))
        return await query(*args, **options)

    def read_model_calls(spans: Sequence[Span]) -> Any:
        threads.add(threading.get_ident())
        return build(spans)

    monkeypatch.setattr(store, "query_spans", query_spans)
    monkeypatch.setattr(traces, "read_model_calls", read_model_calls)
    found, offset = list[str](), 0
    while offset is not None:
        status, trace = await ask(server, f"/ui/rollouts/{started.rollout_id}/trace?offset={offset}")
        assert (status, trace["total"]) == (200, 5_000)
        found += [each["id"] for each in trace["spans"]]
        offset = trace["next"]
    assert found == [f"{number:016x}" for number in range(5_000)]
    assert limits == [2_000] * 3
    assert threading.get_ident() not in threads  # the server's event loop is this one
