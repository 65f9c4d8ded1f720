"""The example of this folder, unchanged, against a model's server of this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core.adapter import read_model_calls
from lightning_core.config import load_job

pytest.importorskip("lightning_weave")


async def test_functions_and_model_calls_are_recorded_and_each_counts_once(
    copy_with_model: Callable[..., Path],
) -> None:
    async with FakeEngine(["It's 42."]) as engine:
        job = load_job(copy_with_model(engine.url, "weave_agent.py", "config.yaml"))
        result = await job.trainer.fit_async(job.agent, job.train_dataset)
        store = job.trainer.store

    assert result.metrics["train_reward"] == 0.5  # the second answer is 25
    for rollout in await store.query_rollouts():
        spans = list(await store.query_spans(rollout.rollout_id))
        names = {span.name: span for span in spans}
        assert names["openai.chat.completions.create"].parent_id == names["ask"].span_id
        assert names["last_number"].attributes["agentlightning.operation.output"] == "42"
        (call,) = read_model_calls(spans)
        assert len(call.spans) == 2
        assert list(call.response_token_ids or ()) == tokens_of("It's 42.")
        assert names["ask"].attributes["agentlightning.operation.input.llm.api_key"] == "***"
