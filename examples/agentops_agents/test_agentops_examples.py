"""The example of this folder, unchanged, against a model's server of this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core.adapter import read_model_calls
from lightning_core.config import load_job

pytest.importorskip("lightning_agentops", reason="the plugin lightning-agentops is not installed here")

FOLDER = Path(__file__).parent


async def test_each_step_is_recorded_with_its_model_call_and_the_calls_have_their_tokens(
    copy_with_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    async with FakeEngine(["It's 41.", "It's 42."]) as engine:
        job = load_job(copy_with_model(engine.url, "two_steps.py", "two_steps.yaml"))
        result = await job.trainer.fit_async(job.agent, job.train_dataset)
        store = job.trainer.store
        (rollout,) = await store.query_rollouts()
        spans = list(await store.query_spans(rollout.rollout_id))

    assert result.metrics["train_reward"] == 1.0
    steps = {span.name: span.span_id for span in spans if span.name.endswith(".task")}
    assert list(steps) == ["draft.task", "review.task"]
    called = [span.parent_id for span in spans if span.name == "openai.chat.completion"]
    assert called == list(steps.values())
    answers = [list(call.response_token_ids or ()) for call in read_model_calls(spans)]
    assert answers == [tokens_of("It's 41."), tokens_of("It's 42.")]
