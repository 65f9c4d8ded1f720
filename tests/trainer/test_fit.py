"""What `Trainer.fit` does with an agent and an algorithm, and what it returns."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lightning_core import LightningStore, PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm, algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.errors import ConfigError, InvalidComponent, LightningError
from lightning_core.types import AttemptedRollout, NamedResources, Rollout, RolloutConfig

PLAIN: NamedResources = {"main_prompt": PromptTemplate(template="Hello {name}")}
POLITE: NamedResources = {"main_prompt": PromptTemplate(template="Good day {name}, please")}


@rollout
async def solve(task: float) -> float:
    return task


@rollout
async def greet(task: str, prompt_template: PromptTemplate) -> float:
    return float("please" in prompt_template.format(name=task))


@algo
async def politeness(store: LightningStore, train_dataset: Sequence[Any], report: Reporter) -> None:
    resources_id = (await store.add_resources(POLITE)).resources_id
    batch = await run_batch(store, train_dataset, mode="train", resources_id=resources_id)
    report({"train_reward": batch.mean_reward or 0.0}, step=1, best_resources=POLITE)


def test_result_says_what_came_of_the_run() -> None:
    trainer = Trainer(algorithm="baseline", initial_resources=PLAIN, n_runners=2)
    result = trainer.fit(greet, ["Ada", "Alan"], val_dataset=["Grace"])
    assert result.status == "succeeded"
    assert result.run_id == trainer.store.run_id
    assert result.best_resources == PLAIN
    assert result.metrics == {"train_reward": 0.0, "val_reward": 0.0}
    assert (result.rollouts.succeeded, result.rollouts.failed, result.rollouts.retried) == (3, 0, 0)
    assert result.failures == []
    assert result.duration_seconds > 0


def test_trainer_without_an_algorithm_says_so() -> None:
    with pytest.raises(LightningError, match=r"has no algorithm; name one, as in Trainer\(algorithm='baseline'\)"):
        Trainer().fit(solve, [1.0])
    with pytest.raises(LightningError, match=r"or run the agent for a run that is led elsewhere: agl worker CONFIG"):
        Trainer().fit(solve, [1.0])


async def test_fit_in_a_running_loop_names_the_one_to_use_there() -> None:
    trainer = Trainer(algorithm="baseline")
    with pytest.raises(LightningError, match=r"running event loop; use: await trainer\.fit_async"):
        trainer.fit(solve, [1.0])
    assert (await trainer.fit_async(solve, [1.0])).metrics == {"train_reward": 1.0}


def test_each_fit_is_a_run_of_its_own() -> None:
    trainer = Trainer(algorithm="baseline", store={"name": "memory", "run_id": "mine"})
    results = [trainer.fit(solve, [reward] * 2) for reward in (1.0, 0.5, 0.0)]
    assert [result.run_id for result in results] == ["mine", "mine-2", "mine-3"]
    assert [result.metrics["train_reward"] for result in results] == [1.0, 0.5, 0.0]
    assert [result.rollouts.succeeded for result in results] == [2, 2, 2]
    assert trainer.store.run_id == "mine-3"


async def test_trainer_runs_one_fit_at_a_time() -> None:
    trainer = Trainer(algorithm="baseline")
    first = asyncio.create_task(trainer.fit_async(solve, [1.0]))
    await asyncio.sleep(0)
    with pytest.raises(LightningError, match="runs already; make another Trainer"):
        await trainer.fit_async(solve, [1.0])
    assert (await first).status == "succeeded"
    assert (await trainer.fit_async(solve, [1.0])).run_id.endswith("-2")


def test_plain_function_around_a_coroutine_function_is_awaited() -> None:
    async def improve(report: Reporter) -> None:
        await asyncio.sleep(0)
        report({"reward": 1.0})

    @algo
    def wrapped(report: Reporter) -> Any:
        return improve(report)

    assert Trainer(algorithm=wrapped).fit(solve).metrics == {"reward": 1.0}


def test_report_after_the_run_changes_nothing() -> None:
    reporters: list[Reporter] = []

    @algo
    async def keeps(report: Reporter) -> None:
        reporters.append(report)

    result = Trainer(algorithm=keeps).fit(solve)
    reporters[0]({"late": 1.0}, step=1)
    assert result.metrics == {}


def test_initial_and_best_resources_are_measured_on_samples_that_the_algorithm_has_not_seen() -> None:
    trainer = Trainer(algorithm=politeness, initial_resources=PLAIN)
    result = trainer.fit(greet, ["Ada"], test_dataset=["Alan", "Grace"])
    assert result.metrics == {"train_reward": 1.0, "test_reward_initial": 0.0, "test_reward": 1.0}
    assert asyncio.run(inputs_by_mode(trainer.store)) == {"train": ["Ada"], "test": ["Alan", "Grace"] * 2}


class Serves(Algorithm):
    """Has resources that do not outlive `run`, and so measures them itself."""

    measures_held_out = True

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        self.set_initial_resources(PLAIN)
        for name, resources in (("test_reward_initial", PLAIN), ("test_reward", POLITE)):
            resources_id = (await self.get_store().add_resources(resources)).resources_id
            held_out = self.get_test_dataset() or []
            batch = await run_batch(self.get_store(), list(held_out), mode="test", resources_id=resources_id)
            self.report({name: batch.mean_reward}, best_resources=resources)


def test_algorithm_may_measure_itself_what_does_not_outlive_it() -> None:
    algorithm = Serves()
    trainer = Trainer(algorithm=algorithm)
    result = trainer.fit(greet, ["Ada"], test_dataset=["Alan", "Grace"])
    assert result.metrics == {"test_reward_initial": 0.0, "test_reward": 1.0}
    assert asyncio.run(inputs_by_mode(trainer.store)) == {"test": ["Alan", "Grace"] * 2}
    assert result.comparison is not None
    assert result.comparison.difference is not None
    assert (result.comparison.mode, result.comparison.difference.difference) == ("test", 1.0)
    assert algorithm.get_test_dataset() is None
    assert algorithm.get_initial_resources() is None


def test_agent_without_resources_is_measured_as_it_is_and_no_algorithm_sees_the_samples() -> None:
    class Curious(Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            assert self.get_test_dataset() is None

    result = Trainer(algorithm=Curious()).fit(solve, [0.0], test_dataset=[1.0, 0.5])
    assert result.metrics == {"test_reward": 0.75}


async def inputs_by_mode(store: LightningStore) -> dict[str | None, list[Any]]:
    found: dict[str | None, list[Any]] = {}
    for each in await store.query_rollouts():
        found.setdefault(each.mode, []).append(each.input)
    return found


def test_rollouts_are_counted_by_how_they_ended() -> None:
    busy, go = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: str, rollout: Rollout) -> float:
        if task == "wait":
            busy.set()
            await go.wait()
        assert isinstance(rollout, AttemptedRollout)
        if task == "fail" or (task == "retry" and rollout.attempt.sequence_id == 1):
            raise ValueError("not today")
        return 1.0

    @algo
    async def schedule(store: LightningStore) -> None:
        async def enqueue(task: str, config: RolloutConfig | None = None) -> str:
            return (await store.enqueue_rollout(task, config=config)).rollout_id

        waiting = await enqueue("wait")
        await busy.wait()
        retry = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        others = [await enqueue("retry", retry), await enqueue("fail"), await enqueue("fail", retry)]
        await store.update_rollout(await enqueue("cancelled"), status="cancelled")
        go.set()
        await store.wait_for_rollouts(rollout_ids=[waiting, *others])
        go.clear()
        busy.clear()
        await enqueue("wait")
        await enqueue("queued")
        await busy.wait()

    counts = Trainer(algorithm=schedule).fit(agent).rollouts
    assert (counts.succeeded, counts.failed, counts.cancelled) == (2, 2, 1)
    assert counts.unfinished == 2
    assert counts.retried == 2


async def test_abandoned_sync_algorithm_is_logged_and_reports_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    started, done, go = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @algo
    def slow(report: Reporter) -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(20)
        report({"late": 1.0})
        done.set()

    fit = asyncio.create_task(Trainer(algorithm=slow).fit_async(solve))
    await started.wait()
    fit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fit
    assert "lightning.algorithm_abandoned" in caplog.text
    go.set()
    assert await asyncio.to_thread(done.wait, 20)


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ((n for n in range(3)), "train_dataset is of type generator"),
        ({"a": 1}, "is of type dict"),
        ("abc", "is of type str"),
    ],
    ids=["generator", "dict", "str"],
)
def test_what_is_no_dataset_is_refused_before_a_run(dataset: Any, told: str) -> None:
    @rollout
    def agent(task: Any) -> float:
        return 1.0

    with pytest.raises(InvalidComponent, match=f"{told}.*a dataset has a length and is read by index, as a list is"):
        Trainer(algorithm="baseline").fit(agent, dataset)


def test_limits_that_cannot_be_are_refused_before_a_run() -> None:
    limits: Any = {"timeout_seconds": -1}
    with pytest.raises(ValueError, match="timeout_seconds"):
        Trainer(rollout_config=limits)


def test_a_broken_prompt_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"initial_resources: main: malformed f-string template"):
        Trainer(algorithm="baseline", initial_resources={"main": PromptTemplate(template="{question")})
    described: Any = {"main": {"resource_type": "prompt_template", "template": "{question}"}}
    with pytest.raises(ConfigError, match=r"initial_resources: main is not a resource, such as PromptTemplate"):
        Trainer(algorithm="baseline", initial_resources=described)


async def test_the_limits_of_rollouts_reach_every_rollout_and_the_held_out_ones_too() -> None:
    @rollout
    async def agent(task: int) -> float:
        if task < 0:
            await asyncio.Event().wait()
        return float(task)

    trainer = Trainer(algorithm="baseline", n_runners=2, rollout_config=RolloutConfig(timeout_seconds=1))
    result = await trainer.fit_async(agent, [1, -1], test_dataset=[2])
    assert (result.rollouts.succeeded, result.rollouts.failed) == (2, 1)
    assert "ran longer than 1 s" in result.failures[0].cause
    assert {each.config.timeout_seconds for each in await trainer.store.query_rollouts()} == {1}
