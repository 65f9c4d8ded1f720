"""A whole training that is ended by its budget, and gone on with."""

import json
from pathlib import Path

import pytest
from lightning_verl.hf.generator import Generator
from watched import Ran, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROLLOUTS = 32
"""Of a step, and calls of the first one; the agent makes two in each rollout of the later ones."""


def test_what_was_learned_is_kept_when_the_budget_is_used_up_and_gone_on_from(model: str, tmp_path: Path) -> None:
    def spend(calls: int, *more: str) -> Ran:
        judge = {"model_name": "judge", "litellm_params": {"model": "openai/judge"}}
        options = {"budget": {"calls": calls}, "llm_proxy": {"model_list": [judge]}}
        agent = ("--agent", "growing", "--run", "runs", "--trainer", json.dumps(options))
        return train(model, "trainer.total_training_steps=4", *more, *agent, cwd=tmp_path)

    # It would last for a second step like the first one, so no checkpoint is written before that.
    ended = spend(ROLLOUTS + ROLLOUTS + ROLLOUTS // 2)
    assert ended.status == 0, ended.output[-5000:]
    assert ended.left == []
    assert ended.end is not None
    assert ended.end["status"] == "budget"
    assert [step["step"] for step in ended.steps] == [1]
    assert ended.end["best"].endswith("global_step_1/actor/huggingface")
    assert Generator(ended.end["best"]).fingerprint() == ended.steps[-1]["weights"]

    ran = spend(1000, "agentlightning.checkpoint_minutes=0.0001")  # after each step
    assert ran.status == 0, ran.output[-5000:]
    assert [step["step"] for step in ran.steps] == [2, 3, 4]
    assert ran.end is not None
    assert ran.end["succeeded"] == 4 * ROLLOUTS, "no task is skipped, and what had ended of the second step is not lost"
    best = Path(ran.end["best"])
    assert Generator(str(best)).fingerprint() == ran.steps[-1]["weights"]
    kept = {folder.name for folder in best.parents[2].glob("global_step_*")}
    assert kept == {"global_step_3", "global_step_4"}
