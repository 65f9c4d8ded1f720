"""`Trainer(llm_proxy=...)`: the proxy runs while a run does, and every agent has the key of its own attempt."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from lightning_http import LightningStoreServer
from lightning_proxy import LLMProxy, RemoteProxy
from lightning_proxy.testing import FakeEngine

from lightning_core import InMemoryLightningStore, LightningStore, PromptTemplate, Trainer, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.own_calls import own_calls
from lightning_core.errors import ConfigError
from lightning_core.runs import RunFolder
from lightning_core.testing.store.base import present
from lightning_core.trainer.proxies import readdressed
from lightning_core.types import LLM, AttemptedRollout, NamedResources, ProxyLLM, Span
from tests.trainer.conftest import models
from tests.trainer.proxy_agents import ask, call

pytestmark = pytest.mark.usefixtures("clean_environment", "openai_backend", "nothing_left_running")

PROMPT: NamedResources = {"main_prompt": PromptTemplate(template="Answer.")}


async def calls_of(store: LightningStore) -> list[list[Span]]:
    """The model calls of each rollout, as the proxy has recorded them."""
    rollouts = await store.query_rollouts()
    spans = [await store.query_spans(each.rollout_id) for each in rollouts]
    return [[span for span in each if span.name.startswith("chat ")] for each in spans]


@pytest.mark.parametrize(
    ("kind", "strategy"), [("memory", "local"), pytest.param("sqlite", "processes", marks=pytest.mark.slow)]
)
async def test_agents_call_through_the_proxy_of_the_run(
    engine: FakeEngine, tmp_path: Path, strategy: str, kind: str
) -> None:
    store: Any = {"name": kind, **({"path": tmp_path / "store.db"} if kind == "sqlite" else {})}
    trainer = Trainer(
        algorithm="baseline", store=store, strategy=strategy, n_runners=2, llm_proxy={"model_list": models(engine)}
    )
    result = await trainer.fit_async(ask, ["a", "b", "c"])
    assert (result.status, result.bypassed_proxy) == ("succeeded", False)
    assert result.metrics["train_reward"] == 1.0
    assert [len(calls) for calls in await calls_of(trainer.store)] == [1, 1, 1]
    assert not present(trainer.llm_proxy).is_running()
    # Three calls of six tokens or so, a cent each.
    used = result.usage.agent
    assert (used.calls, result.metrics["model_calls"]) == (3, 3.0)
    assert used.cost == pytest.approx(((used.input_tokens or 0) + (used.output_tokens or 0)) / 100)
    await trainer.store.aclose()


async def test_a_run_says_that_no_call_came_through_its_proxy(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    @rollout
    async def past(task: str, llm: LLM) -> float:
        """Call the engine itself, as a client does that has a base URL of its own."""
        itself = LLM(endpoint=engine.url, model="small", api_key="none")
        return float(await asyncio.to_thread(call, itself, task) == "ok")

    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)})
    result = await trainer.fit_async(past, ["a", "b"])
    assert (result.status, result.bypassed_proxy) == ("succeeded", True)
    assert result.summary().startswith("succeeded, but no model call came through the proxy, in ")
    assert "no model call came through the proxy" in repr(result)
    assert [record.message.split()[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "lightning.proxy_bypassed"
    ]
    own: NamedResources = {"main_llm": LLM(endpoint=engine.url, model="small")}
    for options in ({"llm_proxy": {"model_list": models(engine)}, "initial_resources": own}, {}):
        agent = past if options else solve
        result = await Trainer(algorithm="baseline", **options).fit_async(agent, ["a"])
        assert not result.bypassed_proxy, "it was given no model behind a proxy"


@rollout
async def solve(task: str) -> float:
    return 1.0


async def test_each_attempt_has_a_key_that_opens_its_own_calls_alone(engine: FakeEngine) -> None:
    seen: list[LLM] = []

    @rollout
    async def agent(task: int, llm: LLM, resources: NamedResources, rollout: AttemptedRollout) -> float:
        assert isinstance(resources["main_llm"], LLM)
        assert f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1" in llm.endpoint
        seen.append(llm)
        if len(seen) == 2:
            mine = seen[0].model_copy(update={"endpoint": seen[1].endpoint})
            with pytest.raises(Exception, match="403"):
                await asyncio.to_thread(call, mine, "hello")
            return 1.0
        return 0.0

    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)})
    result = await trainer.fit_async(agent, [1, 2])
    assert result.metrics["train_reward"] == 0.5
    assert None not in {llm.api_key for llm in seen}
    assert seen[0].api_key != seen[1].api_key


async def test_an_instance_is_started_and_stopped_with_the_run(engine: FakeEngine) -> None:
    proxy = LLMProxy(model_list=models(engine), key="")
    seen: list[Any] = []

    @algo
    async def algorithm(store: LightningStore, llm_proxy: LLMProxy, initial_resources: NamedResources) -> None:
        seen.append((llm_proxy.is_running(), llm_proxy.get_store() is store, initial_resources["main_llm"]))
        await run_batch(
            store, [1], mode="train", resources_id=(await store.add_resources(initial_resources)).resources_id
        )

    trainer = Trainer(algorithm=algorithm, llm_proxy=proxy)
    for _ in range(2):
        result = await trainer.fit_async(ask)
        assert result.rollouts.succeeded == 1
        assert not proxy.is_running()
    assert [each[:2] for each in seen] == [(True, True)] * 2
    assert isinstance(seen[0][2], ProxyLLM)


async def test_a_proxy_that_runs_already_goes_on_after_the_run(engine: FakeEngine) -> None:
    store = InMemoryLightningStore()
    async with LLMProxy(model_list=models(engine), store=store, key="") as proxy:
        await Trainer(algorithm="baseline", store=store, llm_proxy=proxy).fit_async(ask, [1])
        assert proxy.is_running()
    assert len(engine.received) == 1


async def test_resources_that_have_a_model_keep_it(engine: FakeEngine) -> None:
    direct = LLM(endpoint=engine.url, model="mine", api_key="none")
    trainer = Trainer(algorithm="baseline", initial_resources={"own": direct}, llm_proxy={"model_list": models(engine)})
    result = await trainer.fit_async(ask, [1])
    assert result.best_resources == {"own": direct}
    assert [len(calls) for calls in await calls_of(trainer.store)] == [0]


def test_several_proxies_stand_behind_a_load_balancer() -> None:
    message = r"workers is 2; a proxy is one process.*docs/proxy.md, 'More than one"
    with pytest.raises(ConfigError, match=message):
        Trainer(algorithm="baseline", llm_proxy={"model_list": [ENTRY], "workers": 2})
    with pytest.raises(ConfigError, match=message), pytest.warns(DeprecationWarning, match="num_workers"):
        Trainer(algorithm="baseline", llm_proxy={"model_list": [ENTRY], "num_workers": 2})


async def test_an_algorithm_brings_the_models_to_a_proxy_that_has_none(engine: FakeEngine) -> None:
    @algo
    async def algorithm(store: LightningStore, llm_proxy: LLMProxy) -> None:
        llm_proxy.update_model_list(models(engine, "tuned"))
        resources = {"main_llm": llm_proxy.as_resource()}
        added = await store.add_resources(resources)
        batch = await run_batch(store, [1], mode="train", resources_id=added.resources_id)
        assert batch.rewards == [1.0]

    assert (await Trainer(algorithm=algorithm, llm_proxy=True).fit_async(ask)).status == "succeeded"


async def test_the_proxy_stops_also_when_the_run_fails_or_is_cancelled(engine: FakeEngine) -> None:
    began = asyncio.Event()

    @algo
    async def fails(store: LightningStore) -> None:
        raise RuntimeError("no such host")

    @algo
    async def hangs(store: LightningStore) -> None:
        began.set()
        await asyncio.Event().wait()

    failing = Trainer(algorithm=fails, llm_proxy={"model_list": models(engine)})
    with pytest.raises(RuntimeError, match="no such host"):
        await failing.fit_async(ask)
    hanging = Trainer(algorithm=hangs, llm_proxy={"model_list": models(engine)})
    running = asyncio.create_task(hanging.fit_async(ask))
    await began.wait()
    assert hanging.llm_proxy is not None
    assert hanging.llm_proxy.is_running()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not present(failing.llm_proxy).is_running()
    assert not hanging.llm_proxy.is_running()


async def test_calls_of_the_algorithm_are_recorded_and_counted_and_are_no_rollout_of_the_agent(
    engine: FakeEngine,
) -> None:
    @algo
    async def algorithm(store: LightningStore, llm_proxy: LLMProxy) -> None:
        async with own_calls(store, llm_proxy, algorithm="mine") as llm:
            assert await asyncio.to_thread(call, llm, "criticise") == "ok"

    trainer = Trainer(algorithm=algorithm, llm_proxy={"model_list": models(engine)})
    result = await trainer.fit_async(ask)
    assert result.rollouts.succeeded == 0
    assert result.comparison is None
    assert (result.usage.agent.calls, result.usage.algorithm.calls) == (0, 1)
    (kept,) = await trainer.store.query_rollouts()
    assert (kept.status, kept.input) == ("succeeded", {"calls of": "mine"})


async def test_a_proxy_of_another_process_is_named_by_its_url(engine: FakeEngine) -> None:
    store = InMemoryLightningStore()
    async with LLMProxy(model_list=models(engine), store=store, key="secret") as elsewhere:
        for spec in ({"url": elsewhere.url, "key": "secret"}, RemoteProxy(f"{elsewhere.url}/v1", key="secret")):
            trainer = Trainer(algorithm="baseline", store=store, llm_proxy=spec)
            result = await trainer.fit_async(ask, [1])
            assert result.metrics["train_reward"] == 1.0
            assert trainer.llm_proxy is not None
            assert trainer.llm_proxy.models() == ["small"]
            assert not trainer.llm_proxy.is_running()
        wrong = Trainer(algorithm="baseline", store=store, llm_proxy={"url": elsewhere.url, "key": "wrong"})
        with pytest.raises(
            ConfigError, match=r"llm_proxy: the model proxy at .* refused /v1/models: this is not a key"
        ):
            await wrong.fit_async(ask, [1])
    with pytest.raises(ConfigError, match=r"llm_proxy: the model proxy at http://127\.0\.0\.1:1 is out of reach"):
        await Trainer(algorithm="baseline", llm_proxy="http://127.0.0.1:1").fit_async(ask, [1])


@pytest.mark.slow
async def test_runners_of_a_store_that_is_served_elsewhere_get_keys_with_their_claims(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_KEY", "secret")
    async with LightningStoreServer(InMemoryLightningStore(), "127.0.0.1", 0, key="secret") as server:
        from lightning_http import LightningStoreClient

        async with LightningStoreClient(server.url, key="secret") as store:
            trainer = Trainer(
                algorithm="baseline", store=store, strategy="processes", llm_proxy={"model_list": models(engine)}
            )
            assert present(trainer.llm_proxy).key == "secret"
            assert (await trainer.fit_async(ask, [1, 2])).metrics["train_reward"] == 1.0


# A run that is taken up again


async def test_a_resumed_run_leads_what_was_queued_to_the_new_proxy(engine: FakeEngine, tmp_path: Path) -> None:
    """The first run is interrupted while a call hangs; its proxy's port is another one's by then."""
    asked: list[int] = []

    @rollout
    async def agent(task: int, llm: LLM) -> float:
        asked.append(task)
        return float(await asyncio.to_thread(call, llm, str(task)) == "ok")

    def trainer(run_dir: Any) -> Trainer:
        return Trainer(
            algorithm="baseline",
            initial_resources=PROMPT,
            run_dir=run_dir,
            llm_proxy={"model_list": models(engine), "port": 0},
        )

    first = trainer(tmp_path)
    engine.faults = [None, "never"]
    running = asyncio.create_task(first.fit_async(agent, [1, 2, 3], test_dataset=[4]))
    while len(engine.received) < 2:  # noqa: ASYNC110  # the engine tells of the first one only
        await asyncio.sleep(0.01)
    before = first.llm_proxy.url if first.llm_proxy is not None else ""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await first.store.aclose()
    taken = socket.create_server(("127.0.0.1", int(before.rpartition(":")[2])))
    second = trainer(RunFolder(present(first.recording).folder.path))
    result = await second.fit_async(agent, [1, 2, 3], test_dataset=[4])
    taken.close()
    assert result.status == "succeeded"
    assert result.rollouts.failed == 0
    assert result.metrics["train_reward"] == result.metrics["test_reward"] == 1.0
    assert sorted(asked) == [1, 2, 2, 3, 4]
    endpoints = {
        resource.endpoint
        for version in await second.store.query_resources()
        for resource in version.resources.values()
        if isinstance(resource, ProxyLLM)
    }
    assert second.llm_proxy is not None
    assert endpoints == {f"{second.llm_proxy.url}/v1"}
    assert second.llm_proxy.url != before
    await second.store.aclose()


def test_only_what_is_behind_the_proxy_that_moved_is_led_elsewhere() -> None:
    resources: NamedResources = {
        "ours": ProxyLLM(endpoint="http://a:1/v1", model="m"),
        "others": ProxyLLM(endpoint="http://b:1/v1", model="m"),
        "direct": LLM(endpoint="http://a:1/v1", model="m"),
    }
    moved = readdressed(resources, {"http://a:1": "http://a:2"})
    assert [each.endpoint for each in moved.values() if isinstance(each, LLM)] == [
        "http://a:2/v1",
        "http://b:1/v1",
        "http://a:1/v1",
    ]


# What is wrong is known before anything starts

ENTRY = {"model_name": "m", "litellm_params": {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:1/v1"}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (5, "llm_proxy: it is of type int; it is to be a ModelProxy, its options"),
        ({"modellist": []}, r"llm_proxy has no option 'modellist'; it takes: .*Did you mean 'model_list'\?"),
        ({"model_list": []}, "llm_proxy: model_list is empty; it is a list as LiteLLM has it"),
        ({"model_list": [{"litellm_params": {}}]}, r"llm_proxy: model_list\[0\] has no model_name"),
        ({"model_list": [{**ENTRY, "backend": "opanai"}]}, "llm_proxy: no backend named 'opanai'"),
        ({"model_list": [ENTRY], "port": "many"}, "llm_proxy: port is 'many'; it has to be a whole number"),
        ("no.such.module.PROXY", "llm_proxy: .*no.such"),
        ("ftp://x", "llm_proxy: the URL of a proxy is 'ftp://x'"),
        ({"url": "http://127.0.0.1:1", "port": 1}, "llm_proxy has no option 'port'; it takes: url, key"),
    ],
)
def test_a_wrong_proxy_is_refused_by_the_trainer(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(algorithm="baseline", llm_proxy=spec)


async def test_a_port_that_is_taken_is_named_and_nothing_runs(engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine), "port": port})
        with pytest.raises(ConfigError, match=rf"llm_proxy: cannot serve on port {port} of 127\.0\.0\.1"):
            await trainer.fit_async(ask, [1])
    assert len(await trainer.store.query_rollouts()) == 0


def test_a_key_that_is_not_that_of_the_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_KEY", "of-the-store")
    spec = {"model_list": [ENTRY], "key": "another"}
    with pytest.raises(ConfigError, match="llm_proxy has another key than the variable AGL_KEY"):
        Trainer(algorithm="baseline", strategy="processes", llm_proxy=spec)
    assert Trainer(algorithm="baseline", llm_proxy=spec).llm_proxy is not None
