"""The example of this folder, unchanged, against a model's server of this machine."""

from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core.adapter import read_model_calls
from lightning_core.config import load_job

pytest.importorskip("lightning_weave")

FOLDER = Path(__file__).parent


async def test_functions_and_model_calls_are_recorded_and_each_counts_once(tmp_path: Path) -> None:
    async with FakeEngine(["It's 42."]) as engine:
        for name in ("weave_agent.py", "config.yaml"):
            text = (FOLDER / name).read_text(encoding="utf-8")
            (tmp_path / name).write_text(text.replace("http://127.0.0.1:8000/v1", engine.url), encoding="utf-8")
        job = load_job(tmp_path / "config.yaml")
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
