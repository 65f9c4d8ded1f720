"""What becomes of an attempt whose model dies in this process."""

from typing import Any

import openai
import pytest
from lightning_tokens import Generated

from lightning_core.agent import rollout
from lightning_core.runner import LitAgentRunner
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer
from lightning_core.types import LLM, AttemptedRollout


class Dying:
    """Answers once, and is dead from then on."""

    def __init__(self) -> None:
        self.asked = 0

    async def generate(self, prompt_ids: list[int], sampling: Any, *, request_id: str) -> Generated:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("the process that generates has died")
        return Generated([ord("a")])


@pytest.mark.parametrize("bears_it", [False, True])
async def test_a_model_that_dies_is_no_failure_of_the_agent(
    start: Any, store: InMemoryLightningStore, bears_it: bool
) -> None:
    proxy = (await start(Dying())).proxy

    @rollout
    async def agent(task: Any, llm: LLM) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
            said: Any = [{"role": "user", "content": "x"}]
            await client.chat.completions.create(model=llm.model, messages=said)
            try:
                await client.chat.completions.create(model=llm.model, messages=said)
            except openai.InternalServerError:
                if not bears_it:
                    raise
        return 1.0

    await store.add_resources({"main_llm": proxy.as_resource()})
    queued = await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(instrument=()), max_rollouts=1)
    with runner.run_context(agent=agent, store=store):
        await runner.iter()
    found = await store.get_rollout_by_id(queued.rollout_id)
    assert isinstance(found, AttemptedRollout)
    if bears_it:
        assert found.status == "succeeded"
        return
    assert found.status == "requeuing"
    assert found.attempt.metadata is not None
    assert "the process that generates has died" in found.attempt.metadata["fault"]
