"""No rollout is lost while a provider says for a while that there were too many requests."""

import asyncio
from collections import Counter
from typing import Any

import openai
import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import model

from lightning_core import LitAgent, Trainer, rollout
from lightning_core.runner import clients
from lightning_core.types import LLM, Attempt, Rollout

PATIENCE_SECONDS = 3.0
"""A twentieth of what it is, so that the limit of half a second stands for one of ten."""


class Endings:
    """Counts how rollouts ended, and for what."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: set[str] = set()

    def lightning_rollout_end(self, rollout: Rollout, attempt: Attempt) -> None:
        self.counts[rollout.status] += 1
        self.failures |= {str(each) for name, each in (attempt.metadata or {}).items() if name == "failure"}


class Limited(FakeEngine):
    """Answers 429 to each call for a while, from the first one on."""

    began_at: float | None = None

    def _call(self, answer: Any) -> Any:
        handle = super()._call(answer)

        async def limited(request: Any) -> Any:
            now = asyncio.get_running_loop().time()
            self.began_at = now if self.began_at is None else self.began_at
            self.faults = [429] if now - self.began_at < PATIENCE_SECONDS / 6 else []
            return await handle(request)

        return limited


@rollout
async def ask(task: int, llm: Any) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
        said: Any = [{"role": "user", "content": str(task)}]
        answer = await client.chat.completions.create(model=llm.model, messages=said)
    return float(answer.choices[0].message.content == "ok")


@rollout
async def ask_in_a_program(task: int, llm: Any) -> float:
    try:
        return await ask.training_rollout_async(task, {"main_llm": llm}, None)
    except openai.RateLimitError:
        raise RuntimeError("the program ended with exit status 1") from None


@pytest.mark.parametrize(("agent", "n_runners", "is_proxied"), [(ask, 8, False), (ask_in_a_program, 8, True)])
async def test_no_rollout_is_lost_to_a_rate_limit(
    agent: LitAgent[Any], n_runners: int, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    endings = Endings()
    async with Limited() as engine:
        options: dict[str, Any] = {"initial_resources": {"main_llm": LLM(endpoint=engine.url, model="small")}}
        if is_proxied:
            options = {"llm_proxy": {"model_list": [model(engine, "small")], "num_retries": 0}}
        trainer = Trainer(algorithm="baseline", n_runners=n_runners, hooks=[endings], **options)
        result = await trainer.fit_async(agent, list(range(70)))
    assert endings.failures == set()
    assert endings.counts["requeuing"] > 0
    assert endings.counts["succeeded"] == 70
    assert result.metrics["train_reward"] == 1.0
