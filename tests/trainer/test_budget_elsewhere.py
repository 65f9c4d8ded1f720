"""A proxy that runs by itself has a budget of its own: a run ends with it, and says whose it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from lightning_proxy import LLMProxy, RemoteProxy
from lightning_proxy.testing import FakeEngine

from lightning_core import InMemoryLightningStore, LightningStore, Trainer
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.algorithm.own_calls import own_calls
from lightning_core.budget import Budget
from lightning_core.runs import RunFolder
from lightning_core.runs.result import more_budget
from lightning_core.testing.store.base import present
from lightning_core.types import NamedResources
from tests.trainer.conftest import models
from tests.trainer.proxy_agents import ask, ask_and_bear, call

pytestmark = pytest.mark.usefixtures("clean_environment", "openai_backend", "nothing_left_running")


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture
async def elsewhere(engine: FakeEngine, store: InMemoryLightningStore) -> AsyncIterator[LLMProxy]:
    """A proxy that no trainer has made."""
    proxy = LLMProxy(model_list=models(engine), store=store, key="secret", budget=Budget(calls=3))
    async with proxy:
        yield proxy


def trainer_of(proxy: LLMProxy, store: LightningStore, **options: Any) -> Trainer:
    spec = {"url": proxy.url, "key": proxy.key or ""}
    return Trainer(**{"algorithm": "baseline", "store": store, "llm_proxy": spec, **options})


@pytest.mark.parametrize("agent", [ask, ask_and_bear])
async def test_the_run_ends_with_the_budget_of_its_proxy(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine, tmp_path: Path, agent: Any
) -> None:
    trainer = trainer_of(elsewhere, store, run_dir=tmp_path, budget={"seconds": 600})
    result = await trainer.fit_async(agent, list(range(8)))
    assert result.status == "budget"
    expected = f"the budget of the proxy at {elsewhere.url} of 3 calls is used up (3 calls by now)"
    assert str(result.budget) == expected
    assert len(engine.received) == 3
    # What was refused has not failed: it is not run.
    assert (result.rollouts.succeeded, result.rollouts.failed, result.rollouts.unfinished) == (3, 0, 5)
    # The budget of another process cannot be raised here.
    assert more_budget(result.budget, {}) == ""
    kept = RunFolder(present(trainer.recording).folder.path).manifest()
    assert str(present(kept.result).budget) == expected


@pytest.mark.parametrize("strategy", ["local", "processes"])
async def test_an_algorithm_that_goes_on_asking_is_ended_wherever_its_runners_are(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine, strategy: str
) -> None:
    @algo
    async def endless(store: LightningStore, initial_resources: NamedResources) -> None:
        resources_id = (await store.add_resources(initial_resources)).resources_id
        while True:
            await run_batch(store, [1], mode="train", resources_id=resources_id)

    async with asyncio.timeout(60):
        result = await trainer_of(elsewhere, store, algorithm=endless, strategy=strategy, n_runners=1).fit_async(ask)
    assert result.status == "budget"
    assert len(engine.received) == 3


async def test_a_step_of_the_algorithm_asks_it(elsewhere: LLMProxy, store: InMemoryLightningStore) -> None:
    @algo
    async def bears_refusals(store: LightningStore, llm_proxy: RemoteProxy, report: Reporter) -> None:
        async with own_calls(store, llm_proxy, algorithm="mine") as llm:
            for step in count(1):
                with suppress(OSError):
                    await asyncio.to_thread(call, llm, "criticise")
                report({"reward": 0.5}, step=step)

    async with asyncio.timeout(20):
        result = await trainer_of(elsewhere, store, algorithm=bears_refusals).fit_async(ask)
    assert (result.status, result.metrics["reward"]) == ("budget", 0.5)


async def test_a_refusal_of_the_algorithms_own_call_is_not_its_failure(
    elsewhere: LLMProxy, store: InMemoryLightningStore, caplog: pytest.LogCaptureFixture
) -> None:
    @algo
    async def asks(store: LightningStore, llm_proxy: RemoteProxy, report: Reporter) -> None:
        report({"reward": 0.5})
        try:
            async with own_calls(store, llm_proxy, algorithm="mine") as llm:
                while True:
                    calling = asyncio.ensure_future(asyncio.to_thread(call, llm, "criticise"))
                    await asyncio.shield(calling)
        except BaseException:  # the run may hear of the refusal before this does, and cancel it
            await calling

    result = await trainer_of(elsewhere, store, algorithm=asks).fit_async(ask)
    assert (result.status, result.metrics["reward"]) == ("budget", 0.5)
    assert "HTTP Error 402" in caplog.text


async def test_refusals_of_another_run_do_not_end_this_one(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine
) -> None:
    started = await store.start_rollout("of another run")
    llm = elsewhere.as_resource(started.rollout_id, started.attempt.attempt_id)
    for _ in range(3):
        await asyncio.to_thread(call, llm, "hello")
    with pytest.raises(OSError, match="402"):
        await asyncio.to_thread(call, llm, "hello")

    @algo
    async def needs_none(store: LightningStore) -> None:
        await asyncio.sleep(0)

    assert (await trainer_of(elsewhere, store, algorithm=needs_none).fit_async(ask)).status == "succeeded"


async def test_the_runs_own_time_ends_it_as_well(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine
) -> None:
    @algo
    async def waits() -> None:
        await asyncio.Event().wait()

    result = await trainer_of(elsewhere, store, algorithm=waits, budget={"seconds": 0.1}).fit_async(ask)
    assert result.status == "budget"
    assert result.budget is not None
    assert (result.budget.ended_by, result.budget.proxy) == ("seconds", None)


async def test_a_proxy_says_how_it_stands(elsewhere: LLMProxy) -> None:
    remote = RemoteProxy(elsewhere.url, key="secret")
    try:
        budget = (await remote.status())["budget"]
    finally:
        await remote.stop()
    assert budget == {
        "limits": {"calls": 3},
        "used": {"calls": 0, "tokens": 0, "usd": 0.0, "seconds": 0.0},
        "unpriced_calls": 0,
        "reached": None,
        "refusals": 0,
    }
