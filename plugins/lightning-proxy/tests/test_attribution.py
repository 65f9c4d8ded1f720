"""Every call belongs to a live attempt, and says so by its URL, its key or a header."""

import itertools
from typing import Any

import pytest
from lightning_http.auth import Keys
from lightning_proxy import LLMProxy
from lightning_proxy.owner import read_path
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, MakeProxy, Serve, refusal, refused, status_of

from lightning_core.store import InMemoryLightningStore
from lightning_core.testing import FakeClock
from lightning_core.types import AttemptedRollout

BODY = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}


async def call(http: Any, proxy: LLMProxy, headers: dict[str, str], path: str = "/v1/chat/completions") -> Any:
    async with http.post(f"{proxy.url}{path}", json=BODY, headers=headers) as response:
        return response.status, await response.json()


async def test_a_call_of_no_attempt_is_refused_with_what_to_do(http: Any, proxy: LLMProxy) -> None:
    status, answer = await call(http, proxy, {})
    assert status == 403
    assert answer["error"]["code"] == "unattributed"
    assert "ProxyLLM.get_base_url" in answer["error"]["message"]


async def test_a_call_of_no_attempt_can_be_allowed_and_is_not_recorded(
    http: Any, make_proxy: MakeProxy, engine: FakeEngine, store: InMemoryLightningStore
) -> None:
    proxy = await make_proxy(engine, allow_unattributed=True)
    assert (await call(http, proxy, {}))[0] == 200
    assert (await store.statistics())["total_spans"] == 0


async def test_a_call_is_part_of_the_trace_that_its_header_names(
    http: Any, proxy: LLMProxy, attempt: AttemptedRollout
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    agent = Agent(http, proxy, attempt)
    assert await status_of(agent.chat(headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})) == 200
    span = await agent.span()
    assert (span.trace_id, span.parent_id) == (trace_id, "b7ad6b7169203331")


WAYS = ("URL", "headers", "own header", "baggage")
"""All that says whose call it is, in the order in which it is believed."""


def said(ways: dict[str, AttemptedRollout]) -> tuple[str, dict[str, str]]:
    """The path and the headers of a call of which each way says whose it is."""
    path, headers = "/v1/chat/completions", {}
    for way, rollout in ways.items():
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        if way == "URL":
            path = f"/rollout/{rollout_id}/attempt/{attempt_id}{path}"
        headers |= {
            "URL": {},
            "headers": {"x-rollout-id": rollout_id, "x-attempt-id": attempt_id},
            "own header": {"trace_id": f"{rollout_id}/{attempt_id}"},
            "baggage": {"baggage": f"agentlightning.rollout_id={rollout_id},agentlightning.attempt_id={attempt_id}"},
        }[way]
    return path, headers


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(WAYS, 2)))
@pytest.mark.parametrize("key", ["", "secret"])
async def test_of_two_that_disagree_the_first_is_believed(serve: Serve, first: str, second: str, key: str) -> None:
    """Of whoever may call for every attempt: without a key, and with that of the algorithm."""
    one = await serve(attribution_header="trace_id", key=key)
    other = await one.another()
    path, headers = said({first: one.rollout, second: other.rollout})
    headers["authorization"] = f"Bearer {key or 'none'}"
    assert (await call(one.http, one.proxy, headers, path))[0] == 200
    assert len(await one.spans()) == 1
    assert await other.spans() == []


async def test_only_the_newest_attempt_of_a_rollout_that_goes_on_may_call(
    serve: Serve, http: Any, store: InMemoryLightningStore, attempt: AttemptedRollout
) -> None:
    clock = FakeClock()
    agent = await serve(clock=clock)
    assert await status_of(agent.chat()) == 200
    newer = await store.start_attempt(attempt.rollout_id)
    await clock.advance(1.0)
    assert "is not the newest attempt" in await refused(agent.chat(), 403)
    agent = Agent(http, agent.proxy, newer)
    assert await status_of(agent.chat()) == 200
    await store.update_attempt(newer.rollout_id, newer.attempt.attempt_id, status="succeeded")
    await clock.advance(1.0)
    assert "its rollout is 'succeeded'" in await refused(agent.chat(), 403)


async def test_an_unknown_rollout_may_not_call(http: Any, proxy: LLMProxy) -> None:
    status, answer = await call(http, proxy, {}, "/rollout/ro-1/attempt/at-1/v1/chat/completions")
    assert status == 403
    assert "the store has no such rollout" in answer["error"]["message"]


class TestKeys:
    @pytest.fixture
    async def proxy(self, make_proxy: MakeProxy, engine: FakeEngine) -> LLMProxy:
        return await make_proxy(engine, key="secret")

    @pytest.fixture
    def key(self, proxy: LLMProxy, attempt: AttemptedRollout) -> str:
        key = proxy.attempt_key(attempt.rollout_id, attempt.attempt.attempt_id)
        assert key is not None
        return key

    async def test_the_url_alone_is_not_enough(self, agent: Agent) -> None:
        assert "the proxy wants a key" in await refused(agent.chat(), 401)

    @pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key", "x-goog-api-key"])
    async def test_the_key_of_the_attempt_says_whose_call_it_is(
        self, http: Any, proxy: LLMProxy, agent: Agent, key: str, header: str
    ) -> None:
        value = f"Bearer {key}" if header == "authorization" else key
        assert (await call(http, proxy, {header: value}))[0] == 200
        assert key not in (await agent.span()).model_dump_json()

    async def test_a_key_in_the_url_is_one_and_goes_no_further(
        self, serve: Serve, http: Any, engine: FakeEngine, key: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        agent = await serve(key="secret", allow_paths=["rerank"])
        assert (await call(http, agent.proxy, {}, f"/v1/messages?beta=true&key={key}"))[0] == 200
        assert await status_of(http.post(f"{agent.base}/rerank?key={key}&a=1", json={"model": "small"})) == 201
        assert engine.received[1].path == "/v1/rerank?a=1"
        assert (await call(http, agent.proxy, {}, "/v1/messages?key=agl-at-x.y"))[0] == 401
        (span,) = await agent.spans()
        assert key not in span.model_dump_json() + caplog.text
        assert "key" not in str([received.headers for received in engine.received]).lower()

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("besides", [None, "URL", "headers"])
    async def test_nothing_may_say_otherwise(
        self, serve: Serve, attempt: AttemptedRollout, key: str, way: str, besides: str | None
    ) -> None:
        agent = await serve(key="secret", attribution_header="trace_id")
        other = await agent.another()
        ways = {way: other.rollout} if besides in (None, way) else {besides: attempt, way: other.rollout}
        path, headers = said(ways)
        status, answer = await call(agent.http, agent.proxy, {**headers, "authorization": f"Bearer {key}"}, path)
        assert (status, answer["error"]["code"]) == (403, "wrong_attempt")
        assert f"it cannot call for attempt {other.rollout.attempt.attempt_id!r}" in answer["error"]["message"]
        path, headers = said(dict.fromkeys(ways, attempt))
        assert (await call(agent.http, agent.proxy, {**headers, "authorization": f"Bearer {key}"}, path))[0] == 200
        assert len(await agent.spans()) == 1
        assert await other.spans() == []

    async def test_the_algorithm_alone_is_told_how_the_proxy_stands(self, http: Any, proxy: LLMProxy, key: str) -> None:
        url = f"{proxy.url}/control/status"
        assert await refusal(http.get(url, headers={"authorization": f"Bearer {key}"})) == (403, "not_allowed")
        async with http.get(url, headers={"authorization": "Bearer secret"}) as response:
            assert await response.json() == await proxy.status()

    @pytest.mark.parametrize("what", ["pause", "resume", "drain", "weights", "model_list", "status"])
    async def test_nobody_steers_over_http(self, http: Any, proxy: LLMProxy, what: str) -> None:
        call = http.post(f"{proxy.url}/control/{what}", json={}, headers={"authorization": "Bearer secret"})
        assert await refusal(call) == (404, "unknown_path")
        assert (await proxy.status())["is_paused"] is False

    async def test_a_good_key_counts_beside_one_that_is_none(self, http: Any, proxy: LLMProxy, key: str) -> None:
        good = {"authorization": f"Bearer {key}", "x-api-key": key, "api-key": key}
        for name, value in good.items():
            dummies = dict.fromkeys(good.keys() - {name}, "dummy")
            assert (await call(http, proxy, {**dummies, name: value}))[0] == 200
        status, answer = await call(http, proxy, dict.fromkeys(good, "dummy"))
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")

    async def test_a_key_that_has_expired_says_so_whatever_stands_beside_it(
        self, http: Any, proxy: LLMProxy, store: InMemoryLightningStore, attempt: AttemptedRollout
    ) -> None:
        ended = Keys("secret", attempt_seconds=0).mint(store.run_id, attempt.rollout_id, attempt.attempt.attempt_id, 0)
        for name, other in (("authorization", "x-api-key"), ("x-api-key", "authorization")):
            headers = {name: f"Bearer {ended}" if name == "authorization" else str(ended), other: "Bearer dummy"}
            assert "has expired" in (await call(http, proxy, headers))[1]["error"]["message"]


async def test_a_proxy_without_a_key_answers_to_its_own_machine_only(http: Any, proxy: LLMProxy) -> None:
    status, answer = await call(http, proxy, {"host": "evil.example"})
    assert status == 403
    assert answer["error"]["code"] == "not_local"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_a_web_page_of_another_site_makes_no_calls(agent: Agent, engine: FakeEngine, headers: Any) -> None:
    assert await refusal(agent.chat(headers=headers)) == (403, "other_site")
    attempt = agent.rollout.attempt
    flush = f"{agent.proxy.url}/rollout/{attempt.rollout_id}/attempt/{attempt.attempt_id}/flush"
    assert await status_of(agent.http.post(flush, headers=headers)) == 403
    assert await status_of(agent.chat(headers={"Origin": agent.proxy.url, "Sec-Fetch-Site": "same-origin"})) == 200
    assert await status_of(agent.http.get(f"{agent.proxy.url}/health", headers={"Sec-Fetch-Site": "cross-site"})) == 200


def test_the_url_says_that_a_grader_calls() -> None:
    assert read_path("/rollout/r/attempt/a/judge/v1/models") == ("r", "a", "/v1/models", "judge")
    assert read_path("/rollout/r/attempt/a/v1/judge/x") == ("r", "a", "/v1/judge/x", None)
    assert read_path("/rollout/r/attempt/a/judges/v1") == ("r", "a", "/judges/v1", None)
    assert read_path("/judge/v1/models") == (None, None, "/judge/v1/models", None)
