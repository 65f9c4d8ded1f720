"""Replicas of one model: an attempt stays on one, new ones go to the least loaded, dead ones are left out."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lightning_proxy.backend import Backend
from lightning_proxy.models import make_replicas
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import Agent, Serve, held, model, status_of

from lightning_core.errors import ConfigError, UnknownComponent
from lightning_core.registry import Registry, default_registry
from lightning_core.testing import FakeClock


@pytest.fixture
async def second() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        yield engine


async def test_calls_of_an_attempt_stay_on_one_and_attempts_are_spread(
    serve: Serve, engine: FakeEngine, second: FakeEngine
) -> None:
    agent, where = await serve(engine, second), []
    for _ in range(4):
        agent = await agent.another()
        for _ in range(3):
            assert await status_of(agent.chat()) == 200
        addresses = {span.attributes["server.address"] for span in await agent.spans()}
        assert len(addresses) == 1
        where += addresses
    assert sorted(Counter(where).values()) == [2, 2]


async def test_another_replica_answers_at_once_when_one_dies(
    serve: Serve, engine: FakeEngine, second: FakeEngine
) -> None:
    agent = await serve(engine, second)
    await engine.stop()
    for _ in range(4):
        assert await status_of((await agent.another()).chat()) == 200
    assert len(second.received) == 4


async def test_a_new_list_takes_effect_while_calls_are_under_way(
    agent: Agent, engine: FakeEngine, second: FakeEngine
) -> None:
    call = await held(engine, agent.chat())
    agent.proxy.update_model_list([model(second)])
    assert await status_of(agent.chat()) == 200
    engine.hold.set()
    assert (await call).status == 200
    assert [len(each.received) for each in (engine, second)] == [1, 1]
    with pytest.raises(ConfigError, match="no model_name"):
        agent.proxy.update_model_list([{}])
    assert await status_of(agent.chat()) == 200


class TestHealth:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def replicas(self, clock: FakeClock) -> Replicas:
        replicas = Replicas(clock, lambda _: None)
        replicas.replace([_replica("a"), _replica("b")])
        return replicas

    async def test_a_dead_one_is_tried_by_one_call_after_a_while(self, replicas: Replicas, clock: FakeClock) -> None:
        a, b = replicas.all
        for _ in range(20):  # of one outage
            replicas.record_failure(a, "it broke", is_dead=True)
        assert {replicas.place("m", None) for _ in range(3)} == {b}
        await clock.advance(1.0)
        b.in_flight = 5
        assert replicas.place("m", None) is a
        replicas.begin(a)
        assert replicas.place("m", None) is b  # one call is enough to find out
        await clock.advance(1.9)
        assert replicas.place("m", None) is b
        await clock.advance(0.2)
        assert replicas.place("m", None) is a
        replicas.record_success(a)
        assert a.down_until == 0

    async def test_each_try_makes_the_next_pause_twice_as_long(self, replicas: Replicas, clock: FakeClock) -> None:
        a, _ = replicas.all
        replicas.record_failure(a, "it broke", is_dead=True)
        pauses = []
        for _ in range(7):
            pauses.append(a.down_until - clock.now())
            await clock.advance(pauses[-1])
            replicas.begin(a)
            replicas.record_failure(a, "it broke", is_dead=False)
        assert pauses == [1, 2, 4, 8, 16, 30, 30]
        replicas.record_success(a)
        replicas.record_failure(a, "it broke", is_dead=True)
        assert a.down_until == clock.now() + 1

    async def test_it_takes_three_errors_of_the_server_in_a_row(self, replicas: Replicas) -> None:
        a, b = replicas.all
        for _ in range(2):
            replicas.record_failure(a, "it broke", is_dead=False)
        assert not a.down_until
        replicas.record_success(a)
        for _ in range(3):
            replicas.record_failure(a, "it broke", is_dead=False)
        assert replicas.place("m", None) is b

    async def test_an_attempt_leaves_a_dead_one_and_then_stays_where_it_is(
        self, replicas: Replicas, clock: FakeClock
    ) -> None:
        first = replicas.place("m", "at-1")
        replicas.record_failure(first, "it broke", is_dead=True)
        other = replicas.place("m", "at-1")
        assert other is not first
        await clock.advance(60)
        assert replicas.place("m", "at-1") is other


def _replica(base: str) -> Replica:
    return Replica("m", "m", OpenAIBackend(f"http://{base}:1/v1"))


def at_a(**params: Any) -> dict[str, Any]:
    return {"litellm_params": {"api_base": "http://a:1", **params}}


class TestModelList:
    def test_litellms_names_of_providers_lead_to_the_openai_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        params = [
            {"model": "hosted_vllm/org/name", "api_base": "http://a:1/v1"},
            {"model": "openai/name", "api_key": "sk-1"},
            {"model": "org/name", "api_base": "http://a:1/v1"},
        ]
        entries = [{"model_name": "m", "litellm_params": each} for each in params]
        replicas = make_replicas(entries, default_registry())
        assert [replica.model for replica in replicas] == ["org/name", "name", "org/name"]
        assert [replica.backend.address for replica in replicas] == ["a:1", "api.openai.com", "a:1"]
        assert [replica.backend.gives_tokens for replica in replicas] == [True, False, False]

    @pytest.mark.parametrize(
        "params",
        [
            {"model": "anthropic/claude"},
            {"model": "anthropic/claude", "api_base": "http://a:1"},
            {"model": "azure/gpt-4o", "api_base": "https://a.openai.azure.com", "api_key": "x"},
        ],
    )
    def test_other_providers_need_litellm(self, params: dict[str, Any]) -> None:
        with pytest.raises(UnknownComponent, match="lightning-litellm"):
            make_replicas([{"model_name": "m", "litellm_params": params}], Registry(()))

    def test_a_backend_may_be_an_instance(self) -> None:
        backend: Backend = OpenAIBackend("http://a:1/v1")
        (replica,) = make_replicas([{"model_name": "m", "backend": backend}], default_registry())
        assert replica.backend is backend
        assert not replica.is_owned

    def test_what_has_not_changed_is_kept(self) -> None:
        entries = [{"model_name": "m", "litellm_params": {"model": "m", "api_base": f"http://{n}:1"}} for n in "ab"]
        first = make_replicas(entries, default_registry())
        second = make_replicas([entries[1]], default_registry(), first)
        assert second == [first[1]]

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"model_name": "m", "litelm_params": {}}, "has no field 'litelm_params'"),
            ({"model_name": "m", "litellm_params": []}, "litellm_params is of type list"),
            ({"model_name": "*", **at_a(model="openai/*")}, "'\\*' stands for no"),
            ({"model_name": "m", **at_a(model="openai/*")}, "'\\*' stands for no"),
            ({"model_name": "m", **at_a(input_cost_per_token="free")}, "input_cost_per_token is 'free'"),
            ({"model_name": "m", **at_a(api_key="os.environ/NO_SUCH_KEY")}, "NO_SUCH_KEY, which is not set"),
            *(
                # One's own server is not taken for OpenAI's.
                (
                    {"model_name": "m", "litellm_params": {"model": f"{provider}/x"}},
                    rf"model_list\[0\] \(m\): '{provider}/x' has no api_base, and would go to OpenAI; give the URL of",
                )
                for provider in ("hosted_vllm", "vllm", "sglang")
            ),
        ],
    )
    def test_a_wrong_entry_is_named(self, entry: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(ConfigError, match=message):
            make_replicas([entry], default_registry())


async def test_one_whose_streams_always_break_is_left_out(serve: Serve, engine: FakeEngine, second: FakeEngine) -> None:
    agent = await serve(engine, second, clock=FakeClock())
    engine.faults = ["dies_mid_stream"] * 20
    broken = 0
    for _ in range(20):
        async with (await agent.another()).chat(stream=True) as response:
            broken += "backend_broke" in await response.text()
    assert broken == 3
    assert [replica["is_up"] for replica in (await agent.proxy.status())["replicas"]] == [False, True]


@pytest.mark.parametrize("given", [{}, {"api_key": "os.environ/OPENAI_API_KEY"}])
async def test_the_key_of_the_environment_goes_to_the_endpoint_of_the_environment(
    serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", engine.url)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-engine")
    entry = {"model_name": "small", "litellm_params": {"model": "openai/small", **given}}
    agent = await serve(model_list=[entry])
    assert await status_of(agent.chat()) == 200
    (received,) = engine.received
    assert received.headers["Authorization"] == "Bearer key-of-the-engine"


async def test_an_endpoint_that_is_given_gets_no_key_of_the_environment(
    serve: Serve, http: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://other.invalid/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another")
    agent = await serve(model_list=[model(engine)])
    assert await status_of(agent.chat()) == 200
    assert "Authorization" not in engine.received[0].headers


@pytest.mark.parametrize("url", [None, ""])
def test_without_it_a_model_is_at_openai(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert OpenAIBackend().address == "api.openai.com"


def test_a_variable_that_is_not_a_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL is 'localhost:8000'; it is the URL of an endpoint"):
        OpenAIBackend()
