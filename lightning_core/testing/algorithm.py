"""The conformance suite of algorithms."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from lightning_core.agent import LitAgent, rollout
from lightning_core.algorithm import Algorithm
from lightning_core.errors import Fault, NoRewards
from lightning_core.runs import FitResult
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.trainer import Trainer
from lightning_core.types import AttemptedRollout, Dataset, NamedResources, PromptTemplate, Resource, RolloutConfig

PATIENCE_SECONDS = 60.0
"""Real time after which a run that should have ended is an error. No test waits for it to pass."""

SEED = 7

_NO_PROMPT = PromptTemplate(template="")


class AlgorithmSuite:
    """Proves that an algorithm comes to its end, can be stopped and continued, and takes failures for what they are.

    Subclass it in a test file, and say how to make the algorithm:

        from lightning_core.testing import AlgorithmSuite
        from my_package import MyAlgorithm


        class TestMyAlgorithm(AlgorithmSuite):
            def make_algorithm(self, *, seed):
                # New each time. With the same seed it has to search the same way.
                return MyAlgorithm(rounds=2, seed=seed, client=FakeModel(seed))

    The suite's agent has a prompt, `main_prompt`, and a reward that depends on the prompt and the task; what the
    algorithm calls besides (a model that writes prompts) has to be deterministic, too. Override `initial_resources`,
    the datasets or `score` where yours needs others. It has to run at least four rollouts. A test that an algorithm
    cannot pass yet can be overridden by its name, with the reason.
    """

    pytestmark = pytest.mark.asyncio

    initial_resources: ClassVar[NamedResources] = {"main_prompt": PromptTemplate(template="Answer: {question}")}
    train_dataset: ClassVar[Dataset[Any]] = [f"training question {number}" for number in range(8)]
    val_dataset: ClassVar[Dataset[Any] | None] = [f"validation question {number}" for number in range(8)]

    def make_algorithm(self, *, seed: int) -> Algorithm:
        """Return a new algorithm whose choices depend on the seed alone, and on what it is told."""
        raise NotImplementedError("override make_algorithm: return a new algorithm")

    def score(self, task: Any, prompt: str) -> float:
        """Return the reward of a task with a prompt: from 0 to 1, the same one each time."""
        return zlib.crc32(f"{task}|{prompt}".encode()) % 1000 / 999

    def make_agent(self, before: Callable[[Any, AttemptedRollout], Awaitable[None]] | None = None) -> LitAgent[Any]:
        """Return an agent whose reward is `score`.

        Args:
            before: Called with the task and the rollout before it is scored; may raise, or wait.
        """

        @rollout
        async def agent(task: Any, rollout: AttemptedRollout, prompt_template: PromptTemplate = _NO_PROMPT) -> float:
            if before is not None:
                await before(task, rollout)
            return self.score(task, prompt_template.template)

        return agent

    async def fit(
        self,
        agent: LitAgent[Any],
        *,
        store: LightningStore | None = None,
        n_runners: int = 4,
        seed: int = SEED,
        rollout_config: RolloutConfig | None = None,
    ) -> FitResult:
        """Run a new algorithm on an agent, in a store where nothing has happened unless one is given."""
        trainer = Trainer(
            algorithm=self.make_algorithm(seed=seed),
            store=InMemoryLightningStore() if store is None else store,
            n_runners=n_runners,
            initial_resources=self.initial_resources,
            rollout_config=rollout_config,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await trainer.fit_async(agent, self.train_dataset, val_dataset=self.val_dataset)

    async def test_it_comes_to_its_end_and_leaves_no_work_behind(self) -> None:
        result = await self.fit(self.make_agent())
        assert result.status == "succeeded"
        assert result.rollouts.succeeded >= 4
        assert result.rollouts.unfinished == result.rollouts.failed == 0

    async def test_the_best_resources_are_of_the_kind_that_it_was_given(self) -> None:
        result = await self.fit(self.make_agent())
        if result.best_resources is None:
            pytest.skip("the algorithm reports no best resources")
        assert result.best_resources.keys() == self.initial_resources.keys()
        assert all(isinstance(resource, Resource) for resource in result.best_resources.values())

    async def test_the_same_seed_searches_the_same_way_however_many_runners_there_are(self) -> None:
        stores = [InMemoryLightningStore() for _ in range(2)]
        alone = await self.fit(self.make_agent(), store=stores[0], n_runners=1)
        together = await self.fit(self.make_agent(), store=stores[1], n_runners=8)
        assert (alone.metrics, alone.best_resources) == (together.metrics, together.best_resources)
        assert await work_of(stores[0]) == await work_of(stores[1])

    async def test_its_rollouts_have_the_limits_that_the_user_gave(self) -> None:
        store = InMemoryLightningStore()
        limits = RolloutConfig(timeout_seconds=1234.5, max_attempts=2)
        await self.fit(self.make_agent(), store=store, rollout_config=limits)
        found = {each.config.model_dump_json() for each in await store.query_rollouts()}
        assert found == {limits.model_dump_json()}, "enqueue with config=self.get_rollout_config()"

    async def test_it_ends_when_it_is_cancelled_and_leaves_nothing_running(self) -> None:
        before = asyncio.all_tasks()
        await self._interrupted(InMemoryLightningStore(), after=2)
        assert not asyncio.all_tasks() - before

    async def test_one_that_was_killed_goes_on_where_it_was(self) -> None:
        whole, killed = InMemoryLightningStore(), InMemoryLightningStore()
        expected = await self.fit(self.make_agent(), store=whole)
        await self._interrupted(killed, after=3)
        done = [each.rollout_id for each in await killed.query_rollouts(status_in=["succeeded"])]
        result = await self.fit(self.make_agent(), store=killed)
        assert result.status == "succeeded"
        assert (result.metrics, result.best_resources) == (expected.metrics, expected.best_resources)
        assert await work_of(killed) == await work_of(whole), "what had ended was run again, or is missing"
        for rollout_id in done:
            assert len(await killed.query_attempts(rollout_id)) == 1

    async def test_a_fault_changes_nothing(self) -> None:
        async def first_fails(task: Any, rollout: AttemptedRollout) -> None:
            if rollout.attempt.sequence_id == 1:
                raise Fault("the model's server went away")

        clean, faulty = InMemoryLightningStore(), InMemoryLightningStore()
        expected = await self.fit(self.make_agent(), store=clean)
        result = await self.fit(self.make_agent(first_fails), store=faulty)
        assert (result.metrics, result.best_resources) == (expected.metrics, expected.best_resources)
        assert await work_of(faulty) == await work_of(clean)
        assert result.rollouts.failed == 0

    async def test_a_sample_that_fails_is_lost_and_stops_nothing(self) -> None:
        broken = {dataset[0] for dataset in (self.train_dataset, self.val_dataset) if dataset is not None}

        async def some_fail(task: Any, rollout: AttemptedRollout) -> None:
            if task in broken:
                raise ValueError("too hard")

        result = await self.fit(self.make_agent(some_fail))
        assert result.status == "succeeded"
        assert result.rollouts.failed > 0

    async def test_it_stops_when_nothing_gives_a_reward(self) -> None:
        async def all_fail(task: Any, rollout: AttemptedRollout) -> None:
            raise PermissionError("no key")

        with pytest.raises(NoRewards, match="no key"):
            await self.fit(self.make_agent(all_fail))

    async def _interrupted(self, store: LightningStore, *, after: int) -> None:
        """Run it, and cancel it when so many rollouts have ended and another one runs."""
        working = asyncio.Event()
        begun = 0

        async def stop_after(task: Any, rollout: AttemptedRollout) -> None:
            nonlocal begun
            begun += 1
            if begun > after:
                working.set()
                await asyncio.Event().wait()

        run = asyncio.create_task(self.fit(self.make_agent(stop_after), store=store, n_runners=1))
        waiting = asyncio.create_task(working.wait())
        await asyncio.wait((run, waiting), return_when=asyncio.FIRST_COMPLETED)
        assert working.is_set(), f"it ran no more than {after} rollouts; give it larger datasets"
        run.cancel()
        await asyncio.wait((run,), timeout=PATIENCE_SECONDS)
        assert run.cancelled()


async def work_of(store: LightningStore) -> Counter[str]:
    """Return what was run: each task with its mode and its resources, and how often."""
    texts = {
        update.resources_id: str({name: resource.model_dump() for name, resource in update.resources.items()})
        for update in await store.query_resources()
    }
    return Counter(
        f"{each.input} {each.mode} {texts.get(each.resources_id or '')}" for each in await store.query_rollouts()
    )
