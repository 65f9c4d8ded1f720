"""A proxy that runs by itself has a budget of its own: a run ends with it, and says whose it was."""

import asyncio
from collections.abc import AsyncIterator, Callable
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
from lightning_core.errors import BudgetExhausted
from lightning_core.runs import RunFolder
from lightning_core.runs.result import more_budget
from lightning_core.types import NamedResources
from tests.trainer.conftest import models
from tests.trainer.proxy_agents import ask, ask_and_bear, call, one_waits

pytestmark = pytest.mark.usefixtures("clean_environment", "openai_backend", "nothing_left_running")


@pytest.fixture
def store() -> InMemoryLightningStore:
    return InMemoryLightningStore()


@pytest.fixture(params=["", "secret"])
async def elsewhere(
    request: pytest.FixtureRequest, engine: FakeEngine, store: InMemoryLightningStore
) -> AsyncIterator[LLMProxy]:
    """A proxy that no trainer has made, with a key and without."""
    proxy = LLMProxy(model_list=models(engine), store=store, key=request.param, budget=Budget(calls=3))
    async with proxy:
        yield proxy


def trainer_of(proxy: LLMProxy, store: LightningStore, **options: Any) -> Trainer:
    spec = {"url": proxy.url, "key": proxy.key or ""}
    return Trainer(**{"algorithm": "baseline", "store": store, "llm_proxy": spec, **options})


@pytest.mark.parametrize("agent", [ask, ask_and_bear])
async def test_the_run_ends_with_the_budget_of_its_proxy(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine, tmp_path: Path, agent: Any
) -> None:
    trainer = trainer_of(elsewhere, store, run_dir=tmp_path)
    result = await trainer.fit_async(agent, list(range(8)))
    assert result.status == "budget"
    assert result.budget is not None
    assert (result.budget.ended_by, result.budget.proxy) == ("calls", elsewhere.url)
    expected = f"the budget of the proxy at {elsewhere.url}, of 3 calls is used up (3 calls by now)"
    assert str(result.budget) == expected
    assert len(engine.received) == 3
    # What was refused has not failed: it is not run.
    assert (result.rollouts.succeeded, result.rollouts.failed, result.rollouts.unfinished) == (3, 0, 5)
    # The budget of another process cannot be raised here.
    assert more_budget(result.budget) == ""
    assert trainer.recording is not None
    kept = RunFolder(trainer.recording.folder.path).manifest()
    assert kept.result is not None
    assert str(kept.result.budget) == expected


async def test_an_algorithm_that_goes_on_asking_is_ended(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine
) -> None:
    rounds: list[int] = []

    @algo
    async def endless(store: LightningStore, initial_resources: NamedResources) -> None:
        resources_id = (await store.add_resources(initial_resources)).resources_id
        while True:
            rounds.append(len(rounds))
            await run_batch(store, [1], mode="train", resources_id=resources_id)

    async with asyncio.timeout(20):
        result = await trainer_of(elsewhere, store, algorithm=endless).fit_async(ask)
    assert result.status == "budget"
    assert len(rounds) == 4
    assert len(engine.received) == 3


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


@pytest.mark.parametrize("faults", [[], ["never"]], ids=["after a call", "in a call"])
async def test_calls_of_attempts_that_the_end_has_cut_off_are_told(
    elsewhere: LLMProxy, store: InMemoryLightningStore, engine: FakeEngine, faults: list[Any]
) -> None:
    engine.faults = [*faults]
    trainer = trainer_of(elsewhere, store, n_runners=2)
    result = await trainer.fit_async(one_waits(engine), ["first", "second"])
    assert (result.status, len(engine.received)) == ("budget", 3)
    used = result.usage.agent
    assert used.calls == 3
    assert elsewhere.budget is not None
    told = (used.input_tokens or 0) + (used.output_tokens or 0)
    estimated = elsewhere.budget.used["tokens"] - told  # for what a call had used that was cut off nobody says
    assert told > 0
    assert (estimated > 0) == bool(faults)
    assert (await elsewhere.status())["in_flight"] == 0


async def test_a_run_that_needs_just_the_budget_succeeds(elsewhere: LLMProxy, store: InMemoryLightningStore) -> None:
    trainer = trainer_of(elsewhere, store)
    result = await trainer.fit_async(ask, [1, 2, 3])
    assert (result.status, str(result.budget)) == (
        "succeeded",
        f"used of the budget of the proxy at {elsewhere.url}: 3 of 3 calls",
    )


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


@pytest.fixture
async def remote(elsewhere: LLMProxy) -> AsyncIterator[RemoteProxy]:
    remote = RemoteProxy(elsewhere.url, key=elsewhere.key or "")
    yield remote
    await remote.stop()


async def use_up(proxy: LLMProxy) -> None:
    """Let the budget refuse a call, as if somebody had made more than there are."""
    assert proxy.budget is not None
    for _ in range(3):
        proxy.budget.start_call()
    with pytest.raises(BudgetExhausted):
        proxy.budget.start_call()


async def asked(remote: RemoteProxy, proxy: LLMProxy) -> "asyncio.Task[Any]":
    """Ask for the first refusal, and return when the proxy lets the question wait."""
    task = asyncio.create_task(remote.budget_beyond(0))
    await until(lambda: bool(listeners(proxy)))
    return task


def listeners(proxy: LLMProxy) -> int:
    """How many wait for a refusal."""
    assert proxy.budget is not None
    return len(proxy.budget._refusal_listeners)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110  # what is waited for happens in the proxy's thread
            await asyncio.sleep(0.001)


async def test_a_refusal_is_told_to_whoever_waits_for_it(elsewhere: LLMProxy, remote: RemoteProxy) -> None:
    task = await asked(remote, elsewhere)
    assert not task.done()
    await use_up(elsewhere)
    budget = await asyncio.wait_for(task, 15)  # it would wait for 20 s
    assert (budget["refusals"], budget["reached"]) == (1, "calls")
    # One that is known is not told again, one that is not is told at once.
    assert (await asyncio.wait_for(remote.budget_beyond(0), 15))["refusals"] == 1


async def test_nobody_is_listened_for_who_does_not_wait_any_more(elsewhere: LLMProxy, remote: RemoteProxy) -> None:
    task = await asked(remote, elsewhere)
    task.cancel()
    await until(lambda: listeners(elsewhere) == 0)  # the question would wait for 20 s


async def test_whoever_waits_for_a_refusal_does_not_keep_the_proxy_from_stopping(
    elsewhere: LLMProxy, remote: RemoteProxy
) -> None:
    task = await asked(remote, elsewhere)
    await elsewhere.stop()
    assert (await task)["refusals"] == 0  # an answer, and not the word of a proxy that was kept for too long


async def test_a_proxy_without_a_budget_says_so_at_once(store: InMemoryLightningStore, engine: FakeEngine) -> None:
    async with LLMProxy(model_list=models(engine), store=store, key="secret") as proxy:
        remote = RemoteProxy(proxy.url, key="secret")
        try:
            assert await asyncio.wait_for(remote.budget_beyond(0), 15) is None
        finally:
            await remote.stop()


async def test_a_proxy_without_a_key_says_how_it_stands(elsewhere: LLMProxy) -> None:
    remote = RemoteProxy(elsewhere.url, key=elsewhere.key or "")
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
