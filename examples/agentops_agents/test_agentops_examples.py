"""The examples of this folder, unchanged, against a model's server of this machine."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core import InMemoryLightningStore
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


@pytest.mark.slow
async def test_a_program_with_its_own_init_reports_into_the_store(tmp_path: Path) -> None:
    from lightning_agentops.ingestion import AgentOpsServer

    store = InMemoryLightningStore()
    begun = await store.start_rollout({})
    async with FakeEngine(["It's 42."]) as engine, AgentOpsServer(store, key="") as server:
        told = server.variables(begun.rollout_id, begun.attempt.attempt_id)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "lightning_agentops", str(FOLDER / "own_init.py"), "What is 6 times 7?"],
            cwd=tmp_path,
            env={**os.environ, **told, "OPENAI_BASE_URL": engine.url, "OPENAI_API_KEY": "none"},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "It's 42."), done.stderr
    names = {span.name for span in await store.query_spans(begun.rollout_id)}
    assert names == {"openai.chat.completion", "answer.task", "program.session"}
