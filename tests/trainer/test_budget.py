"""`Trainer(budget=...)`: no call starts beyond it, and the run ends with what it has found."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from lightning_proxy import LLMProxy, admit
from lightning_proxy.testing import FakeEngine
from rich.console import Console

from lightning_core import InMemoryLightningStore, LightningStore, PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm, algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.algorithm.own_calls import own_calls
from lightning_core.budget import Budget
from lightning_core.display.live import Display
from lightning_core.errors import ConfigError, NoRewards
from lightning_core.runs import RunFolder
from lightning_core.testing.store.base import present
from lightning_core.trainer import budgeting
from lightning_core.types import NamedResources
from tests.trainer.conftest import models
from tests.trainer.proxy_agents import ask, ask_and_bear, call, one_waits

pytestmark = pytest.mark.usefixtures("clean_environment", "openai_backend", "nothing_left_running")

BEST: NamedResources = {"main_prompt": PromptTemplate(template="Answer.")}


@rollout
async def solve(task: float) -> float:
    return task


# Which limit ends a run


@pytest.mark.parametrize(
    ("kind", "strategy"), [("memory", "local"), pytest.param("sqlite", "processes", marks=pytest.mark.slow)]
)
async def test_a_run_ends_when_a_call_would_go_over_its_budget(
    engine: FakeEngine, tmp_path: Path, strategy: str, kind: str
) -> None:
    store: Any = {"name": kind, **({"path": tmp_path / "store.db"} if kind == "sqlite" else {})}
    trainer = Trainer(
        algorithm="baseline",
        store=store,
        strategy=strategy,
        n_runners=2,
        llm_proxy={"model_list": models(engine)},
        budget={"calls": 3},
    )
    result = await trainer.fit_async(ask, list(range(20)))
    assert result.status == "budget"
    assert str(result.budget) == "the run's budget of 3 calls is used up (3 calls by now)"
    assert len(engine.received) == 3
    # What was refused a call has not failed: it is not run.
    assert (result.rollouts.failed, result.rollouts.unfinished) == (0, 20 - result.rollouts.succeeded)
    await trainer.store.aclose()


@pytest.mark.parametrize("limit", [{"usd": 0.7}, {"tokens": 70}])
async def test_money_and_tokens_end_a_run(engine: FakeEngine, limit: dict[str, float]) -> None:
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget=limit)
    result = await trainer.fit_async(ask, list(range(20)))
    assert result.status == "budget"
    assert result.budget is not None
    name, most = next(iter(limit.items()))
    assert (result.budget.ended_by, len(engine.received) >= 1) == (name, True)
    assert 0 < result.budget.used[name] <= most


@pytest.mark.parametrize("limit", [{"calls": 2}, {"tokens": 70}])
async def test_calls_under_way_are_not_lost_when_the_budget_is_used_up(
    engine: FakeEngine, limit: dict[str, float]
) -> None:
    engine.hold = asyncio.Event()
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget=limit, n_runners=4)
    run = asyncio.create_task(trainer.fit_async(ask, list(range(8))))
    await engine.began.wait()
    await asyncio.sleep(0.3)  # the others ask, and wait
    under_way = engine.open_calls
    assert not run.done()
    engine.hold.set()
    result = await run
    assert result.status == "budget"
    assert result.rollouts.succeeded == result.usage.agent.calls == len(engine.received) >= under_way


async def test_a_run_that_needs_just_its_budget_succeeds(engine: FakeEngine) -> None:
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget={"calls": 4})
    result = await trainer.fit_async(ask, [1, 2, 3, 4])
    assert result.status == "succeeded"
    assert str(result.budget) == "used of the run's budget: 4 of 4 calls"


async def test_the_best_so_far_is_kept_and_the_algorithm_is_told() -> None:
    told: list[str] = []

    @algo
    async def algorithm(report: Reporter) -> None:
        report({"reward": 0.7}, step=1, best_resources=BEST)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            report({"reward": 0.8}, step=2)
            raise

    result = await Trainer(algorithm=algorithm, budget={"seconds": 0.1}).fit_async(solve, test_dataset=None)
    assert (result.status, result.best_resources, result.metrics) == ("budget", BEST, {"reward": 0.8})
    assert present(result.budget).ended_by == "seconds"
    assert told == ["cancelled"]


async def test_what_refused_calls_do_to_an_algorithm_is_not_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    @algo
    async def algorithm() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NoRewards("none of 4 rollouts gave a reward") from None

    @algo
    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("cannot clean up") from None

    result = await Trainer(algorithm=algorithm, budget={"seconds": 0.1}).fit_async(solve)
    assert result.status == "budget"
    assert "none of 4 rollouts gave a reward" in caplog.text
    with pytest.raises(RuntimeError, match="cannot clean up"):
        await Trainer(algorithm=broken, budget={"seconds": 0.1}).fit_async(solve)


@pytest.mark.parametrize("how", ["as it is", "of a cause", "in a group"])
async def test_a_plain_algorithm_hears_of_the_budget_by_a_refused_call(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    class Plain(Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            asyncio.run(self.search())

        async def search(self) -> None:
            self.report({"reward": 0.5}, best_resources=BEST)
            async with own_calls(self.get_store(), self.get_llm_proxy(), algorithm="plain") as llm:
                try:
                    while True:
                        call(llm, "criticise")
                except HTTPError as exc:
                    if how == "as it is":
                        raise
                    if how == "of a cause":
                        raise RuntimeError("no critique") from exc
                    raise ExceptionGroup("critiques", [exc]) from None

    trainer = Trainer(algorithm=Plain(), llm_proxy={"model_list": models(engine)}, budget={"calls": 2})
    result = await trainer.fit_async(solve)
    assert (result.status, result.best_resources, len(engine.received)) == ("budget", BEST, 2)
    assert "402" in caplog.text


async def test_an_error_of_its_own_fails_an_algorithm_also_when_the_budget_is_used_up(engine: FakeEngine) -> None:
    class Broken(Algorithm):
        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            asyncio.run(self.search())

        async def search(self) -> None:
            async with own_calls(self.get_store(), self.get_llm_proxy(), algorithm="broken") as llm:
                for _ in range(2):
                    with suppress(HTTPError):
                        call(llm, "criticise")
            raise KeyError("critique")

    trainer = Trainer(algorithm=Broken(), llm_proxy={"model_list": models(engine)}, budget={"calls": 1})
    with pytest.raises(KeyError, match="critique"):
        await trainer.fit_async(solve)


@pytest.mark.parametrize(("end_seconds", "saved"), [(5.0, 1.0), (0.01, None)])
async def test_an_algorithm_that_saves_at_the_end_is_given_its_time(end_seconds: float, saved: float | None) -> None:
    is_written = asyncio.Event()

    class Saving(Algorithm):
        async def run(self, *_: Any, **__: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await is_written.wait()
                self.report({"saved": 1.0})

    Saving.end_seconds = end_seconds
    if saved:
        asyncio.get_running_loop().call_later(0.2, is_written.set)
    result = await Trainer(algorithm=Saving(), budget={"seconds": 0.05}).fit_async(solve)
    assert (result.status, result.metrics.get("saved")) == ("budget", saved)
    is_written.set()
    await asyncio.sleep(0)


async def test_an_algorithm_that_saves_at_the_end_can_be_interrupted() -> None:
    saves = asyncio.Event()
    cut_off = asyncio.Event()

    class Slow(Algorithm):
        end_seconds = 3600.0

        async def run(self, *_: Any, **__: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                saves.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cut_off.set()

    run = asyncio.create_task(Trainer(algorithm=Slow(), budget={"seconds": 0.05}).fit_async(solve))
    await asyncio.wait_for(saves.wait(), 20)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)
    assert cut_off.is_set()


async def test_a_reward_of_an_agent_that_bears_a_refusal_is_none(engine: FakeEngine) -> None:
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget={"calls": 2})
    result = await trainer.fit_async(ask_and_bear, [1, 2, 3, 4])
    assert result.status == "budget"
    assert result.comparison is None or result.comparison.before is None or result.comparison.before.mean == 1.0
    assert (result.rollouts.succeeded, result.rollouts.failed) == (2, 0)


async def test_calls_of_the_algorithm_and_of_the_agent_count_together(engine: FakeEngine) -> None:
    @algo
    async def algorithm(store: LightningStore, llm_proxy: LLMProxy, initial_resources: NamedResources) -> None:
        added = await store.add_resources(initial_resources)
        async with own_calls(store, llm_proxy, algorithm="mine") as llm:
            for number in range(10):
                await asyncio.to_thread(call, llm, "criticise")
                await run_batch(store, [number], mode="train", resources_id=added.resources_id)

    trainer = Trainer(algorithm=algorithm, llm_proxy={"model_list": models(engine)}, budget={"calls": 5})
    result = await trainer.fit_async(ask)
    assert result.status == "budget"
    assert (result.usage.agent.calls, result.usage.algorithm.calls) == (2, 3)
    assert result.metrics["model_calls"] == 5


@pytest.mark.parametrize("faults", [[], ["never"]], ids=["after a call", "in a call"])
@pytest.mark.parametrize("whose", ["the run's", "one that runs already"])
async def test_calls_of_attempts_that_the_end_has_cut_off_are_told(
    engine: FakeEngine, faults: list[Any], whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admit, "LAST_CALLS_SECONDS", 0.2)
    engine.faults = [*faults]
    store = InMemoryLightningStore()
    proxy = LLMProxy(model_list=models(engine), store=store, key="", budget={"calls": 3, "tokens": 10**6})
    if whose == "one that runs already":
        await proxy.start()
    trainer = Trainer(algorithm="baseline", n_runners=2, store=store, llm_proxy=proxy)
    try:
        result = await trainer.fit_async(one_waits(engine), ["first", "second"])
    finally:
        await proxy.stop()
    assert (result.status, len(engine.received)) == ("budget", 3)
    assert result.budget is not None
    used = result.usage.agent
    assert used.calls == result.budget.used["calls"] == 3
    told = (used.input_tokens or 0) + (used.output_tokens or 0)
    estimated = result.budget.used["tokens"] - told  # for what a call had used that was cut off nobody says
    assert told > 0
    assert (estimated > 0) == bool(faults)


async def test_the_held_out_test_is_part_of_the_budget(engine: FakeEngine) -> None:
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget={"calls": 3})
    result = await trainer.fit_async(ask, [1, 2], test_dataset=[3, 4, 5])
    assert result.status == "budget"
    assert result.metrics["train_reward"] == 1.0
    assert "test_reward" not in result.metrics


# Each run has its own


async def test_each_run_of_a_trainer_has_the_whole_budget_unless_it_shares_one(engine: FakeEngine) -> None:
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget={"calls": 2})
    assert [(await trainer.fit_async(ask, [1, 2])).status for _ in range(2)] == ["succeeded", "succeeded"]
    shared = Budget(calls=3)
    trainer = Trainer(algorithm="baseline", llm_proxy={"model_list": models(engine)}, budget=shared)
    assert [(await trainer.fit_async(ask, [1, 2])).status for _ in range(2)] == ["succeeded", "budget"]
    assert shared.used["calls"] == 3


async def test_a_resumed_run_goes_on_with_what_is_left(engine: FakeEngine, tmp_path: Path) -> None:
    def trainer(run_dir: Any, calls: int, progress: bool | Display = False) -> Trainer:
        proxy, budget = {"model_list": models(engine)}, {"calls": calls}
        return Trainer(algorithm="baseline", run_dir=run_dir, llm_proxy=proxy, budget=budget, progress=progress)

    first = trainer(tmp_path, 3)
    result = await first.fit_async(ask, list(range(8)))
    assert result.status == "budget"
    folder = RunFolder(present(first.recording).folder.path)
    manifest = folder.manifest()
    assert manifest.outcome == "budget"
    assert manifest.result is not None
    assert present(manifest.result.budget).ended_by == "calls"
    await first.store.aclose()
    # Nothing is left: the first call is refused.
    again = trainer(RunFolder(folder.path), 3)
    assert (await again.fit_async(ask, list(range(8)))).status == "budget"
    assert len(engine.received) == 3
    await again.store.aclose()
    display = Display(Console(quiet=True))
    more = trainer(RunFolder(folder.path), 8, display)
    result = await more.fit_async(ask, list(range(8)))
    assert (result.status, result.rollouts.succeeded) == ("succeeded", 8)
    assert present(result.budget).used["calls"] == len(engine.received) == 8
    shown = display.standing.snapshot()
    assert (shown.usage.calls, shown.retried) == (result.usage.agent.calls, result.rollouts.retried)
    assert present(shown.reward).n == 8  # those from before count, too
    await more.store.aclose()


async def calls_in(store: LightningStore) -> float:
    kept = await store.load_state(budgeting.STATE)
    return 0.0 if kept is None else float(kept["used"]["calls"])


async def test_what_was_used_before_a_kill_is_counted(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has at any moment is what a process finds that comes after a kill."""
    monkeypatch.setattr(budgeting, "SAVE_SECONDS", 0.01)
    store = InMemoryLightningStore()

    @algo
    async def algorithm(store: LightningStore, llm_proxy: LLMProxy) -> None:
        async with own_calls(store, llm_proxy, algorithm="mine") as llm:
            await asyncio.to_thread(call, llm, "one")
            async with asyncio.timeout(20):
                while await calls_in(store) < 1:  # noqa: ASYNC110  # a task of the run writes it
                    await asyncio.sleep(0.01)

    proxy = {"model_list": models(engine)}
    result = await Trainer(algorithm=algorithm, store=store, llm_proxy=proxy, budget={"calls": 5}).fit_async(ask)
    assert result.status == "succeeded"


def test_a_budget_that_is_restored_counts_what_was_used_once() -> None:
    now = [100.0]
    budget = Budget(calls=5, seconds=60, clock=lambda: now[0])
    budget.start()
    for _ in range(2):
        budget.restore({"usd": 0.5, "tokens": 7, "calls": 3, "seconds": 20.0}, unpriced_calls=1)
    now[0] = 110.0
    assert budget.used == {"usd": 0.5, "tokens": 7, "calls": 3, "seconds": 30.0}
    assert budget.unpriced_calls == 1
    budget.start_call()
    now[0] = 141.0
    assert budget.reached == "seconds"
    assert budget.refused is None


# What nobody counts is refused

ENTRY = {"model_name": "m", "litellm_params": {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:1/v1"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": {"calls": 5}}, "budget limits calls, which the model proxy counts, and there is none: give llm_pr"),
        ({"budget": {"seconds": -1}}, "budget: seconds is -1; it has to be more than 0"),
        (
            {"budget": {"calls": 1}, "llm_proxy": {"model_list": [ENTRY], "budget": {"calls": 2}}},
            "budget is given to the trainer and to its llm_proxy; say it in one place",
        ),
        (
            {"budget": {"calls": 1}, "llm_proxy": "http://127.0.0.1:1"},
            "budget limits calls, but the llm_proxy runs by itself",
        ),
        (
            {"budget": {"usd": 1}, "llm_proxy": {"model_list": [ENTRY]}},
            r"model_list \(m\): 'm' has no known price, and usd is limited: give input_cost_per_token",
        ),
    ],
)
def test_a_wrong_budget_is_refused_by_the_trainer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(algorithm="baseline", **options)


async def test_a_proxy_that_runs_without_a_budget_cannot_get_one(engine: FakeEngine) -> None:
    store = InMemoryLightningStore()
    async with LLMProxy(model_list=models(engine), store=store, key="") as proxy:
        with pytest.raises(ConfigError, match="budget limits calls, but the llm_proxy runs by itself"):
            Trainer(algorithm="baseline", store=store, llm_proxy=proxy, budget={"calls": 1})
    own = LLMProxy(model_list=models(engine), budget={"calls": 1}, key="")
    with pytest.raises(ConfigError, match="say it in one place"):
        Trainer(algorithm="baseline", llm_proxy=own, budget={"calls": 1})
    result = await Trainer(algorithm="baseline", llm_proxy=own).fit_async(ask, [1, 2])
    assert (result.status, len(engine.received)) == ("budget", 1)
