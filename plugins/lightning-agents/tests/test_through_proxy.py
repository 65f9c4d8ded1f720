"""Programs that call their model through a trainer's proxy, and report there."""

import sys
from pathlib import Path
from typing import Any

import pytest
from lightning_agents import CommandAgent
from lightning_proxy.testing import FakeEngine, tokens_of

from lightning_core import Trainer
from lightning_core.adapter import read_model_calls
from lightning_core.emitter import find_final_reward
from lightning_core.store import InMemoryLightningStore

PROGRAM = """
import json, os, sys, urllib.request

def post(url, fields, **headers):
    request = urllib.request.Request(url, json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read()

task, said = json.load(sys.stdin), {"model": os.environ["AGL_MODEL"], "max_tokens": 9}
said["messages"] = [{"role": "user", "content": task}]
bearer = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
answer = json.loads(post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", said, **bearer))
post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", said, **{"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
reward = float(answer["choices"][0]["message"]["content"] == "ok")
bearer = {"Authorization": "Bearer " + os.environ["AGL_REPORT_KEY"]}
post(os.environ["AGL_REPORT_URL"], {"reward": {"right": reward, "calls": 2}, "annotation": {"task": task}}, **bearer)
"""


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        ("local", ""),
        ("local", "secret"),
        pytest.param("processes", "secret", marks=pytest.mark.slow),
    ],
)
async def test_calls_and_reports_are_of_their_attempt(
    strategy: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGL_KEY", raising=False)
    (tmp_path / "solve.py").write_text(PROGRAM)
    agent = CommandAgent([sys.executable, "solve.py"], folder=tmp_path, reward="report")
    store = InMemoryLightningStore()
    async with FakeEngine(["ok"]) as engine:
        entry = {"model_name": "small", "litellm_params": {"model": "hosted_vllm/small", "api_base": engine.url}}
        proxy: dict[str, Any] = {"model_list": [entry], "key": key}
        trainer = Trainer(algorithm="baseline", store=store, strategy=strategy, n_runners=2, llm_proxy=proxy)
        result = await trainer.fit_async(agent, ["a", "b"])

    assert (result.status, result.metrics["train_reward"]) == ("succeeded", 1.0)
    for rollout in await store.query_rollouts():
        spans = list(await store.query_spans(rollout.rollout_id))
        assert [span.name for span in spans[:2]] == ["chat small"] * 2
        chat, message = read_model_calls(spans)
        assert chat.messages == ({"role": "user", "content": rollout.input},)
        assert list(chat.response_token_ids or ()) == tokens_of("ok")
        assert message.response_token_ids  # made a call of chat, which gives them
        assert spans[2].attributes == {"task": rollout.input, "agentlightning.reported": "live"}
        assert find_final_reward(spans) == 1.0
