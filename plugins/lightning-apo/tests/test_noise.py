"""Where all prompts are equally good, a run without held-out samples hardly ever claims a gain."""

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any

from lightning_apo import APO

from lightning_core import InMemoryLightningStore, PromptTemplate
from lightning_core.runs import Comparison, compare
from lightning_core.types import NamedResources, Span

FIRST: NamedResources = {"main": PromptTemplate(template="First")}
RUNS = 200


class Models:
    """Takes the place of an `AsyncOpenAI`: each edit is a new prompt."""

    api_key = "toy"
    base_url = "http://models.invalid/v1"

    def __init__(self) -> None:
        self._numbers = itertools.count()

    @property
    def chat(self) -> Any:
        return SimpleNamespace(completions=self)

    async def create(self, **request: Any) -> Any:
        choice = SimpleNamespace(message=SimpleNamespace(content=f"Edit {next(self._numbers)}"), finish_reason="stop")
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=1, completion_tokens=1))


async def reward_by_lot(store: InMemoryLightningStore, seed: int) -> None:
    """Do what a runner does, with an agent whose reward depends on nothing."""
    chance = random.Random(seed)
    while True:
        for claimed in await store.dequeue_many_rollouts(limit=100, wait_seconds=None):
            ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": chance.random()}
            await store.add_span(Span.from_attributes(name="reward", attributes=reward, **ids))
            await store.update_attempt(**ids, status="succeeded")


async def search(apo: APO, seed: int) -> Comparison | None:
    store = InMemoryLightningStore()
    apo.set_store(store)
    apo.set_initial_resources(FIRST)
    runner = asyncio.create_task(reward_by_lot(store, seed))
    try:
        await apo.run(["train"], [f"val {number}" for number in range(9)])
    finally:
        runner.cancel()
    return await compare(store, initial=FIRST, best=dict(apo.get_result().best_prompts))


async def test_where_there_is_nothing_to_find_one_run_in_twenty_at_most_claims_a_gain() -> None:
    """The intervals have 95%, so one in forty is expected: 5 of 200, and more than 10 once in a hundred times."""
    client: Any = Models()
    apo = APO(client, beam_width=2, branch_factor=6, beam_rounds=1, gradient_batch_size=1, val_batch_size=6)
    compared = [await search(apo, seed) for seed in range(RUNS)]
    differences = [each.difference for each in compared if each is not None and each.difference is not None]
    assert len(differences) > RUNS / 4  # in the others the first prompt stayed
    assert all(each.low is not None for each in differences)
    assert sum(each.is_gain for each in differences) <= 0.05 * RUNS
