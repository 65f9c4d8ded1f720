"""No rollout is lost while a provider says for a while that there were too many requests."""

import asyncio
from collections import Counter
from typing import Any

import openai
import pytest
from lightning_proxy.testing import FakeEngine
from proxy_fixtures import model

from lightning_core import Trainer, rollout
from lightning_core.runner import clients
from lightning_core.types import Attempt, Rollout

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
async def ask_in_a_program(task: int, llm: Any) -> float:
    said: Any = [{"role": "user", "content": str(task)}]
    try:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as client:
            answer = await client.chat.completions.create(model=llm.model, messages=said)
    except openai.RateLimitError:
        raise RuntimeError("the program ended with exit status 1") from None
    return float(answer.choices[0].message.content == "ok")


async def test_no_rollout_is_lost_to_a_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    endings = Endings()
    async with Limited() as engine:
        llm_proxy = {"model_list": [model(engine, "small")], "num_retries": 0}
        trainer = Trainer(algorithm="baseline", n_runners=8, hooks=[endings], llm_proxy=llm_proxy)
        result = await trainer.fit_async(ask_in_a_program, list(range(70)))
    assert endings.failures == set()
    assert endings.counts["requeuing"] > 0
    assert endings.counts["succeeded"] == 70
    assert result.metrics["train_reward"] == 1.0
