"""Whole trainings on the processor, one after another in a process: FSDP, TransferQueue, proxy, store.

One more is killed in a process of its own before them, and gone on with: it is resumed, and interrupted.
"""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from watched import Ran, train

from lightning_core.registry import default_registry
from lightning_core.runs.folder import runs_in
from lightning_core.store import LightningStore
from lightning_core.types import RolloutMode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MAX_DIFFERENCE = 1e-5
"""Between the probabilities that tokens were sampled with and those that the actor computes, in fp32."""

ROLLOUTS = 32
"""Of a step: 8 tasks, 4 times each."""

JUDGE = {"model_list": [{"model_name": "judge", "litellm_params": {"model": "openai/judge"}}]}
ACTOR = "actor_rollout_ref.actor"
BF16 = tuple(
    f"{engine}.{key}"
    for engine in (f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
    for key in ("dtype=bfloat16", "mixed_precision.param_dtype=bf16")
)
"""What is the default on a GPU."""

# An adapter in parts, groups that are carried over from step to step, own classes.
RESUMED = (
    *("actor_rollout_ref.model.lora_rank=8", "trainer.n_gpus_per_node=2", "trainer.save_freq=1", "--own-classes"),
    *("trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=50"),
    *("trainer.max_actor_ckpt_to_keep=null", "--tasks", "400", "--test-tasks", "2"),
)

TRAININGS: dict[str, tuple[str, ...]] = {
    "resumed": (*RESUMED, "--end-at", "4", "--end-by", "SIGINT"),
    # In fp32: rows of single calls, as many as an agent makes; a reference; a budget that ends it in its third step.
    "fp32": (
        *("agentlightning.trace_aggregator.level=transition", "data.max_response_length=32"),
        *("data.max_prompt_length=200", f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.use_kl_loss=True"),
        *("--agent", "uneven", "--trainer", json.dumps({"budget": {"calls": 5 * ROLLOUTS}, "llm_proxy": JUDGE})),
    ),
    # In bf16: a critic, agents that fail, and both kinds of measuring.
    "bf16": (
        *(*BF16, "actor_rollout_ref.rollout.dtype=bfloat16", "--preset", "ppo", "actor_rollout_ref.rollout.n=4"),
        *("trainer.val_before_train=True", "trainer.test_freq=1", "--agent", "flaky"),
        *("--val-tasks", "5", "--test-tasks", "2"),
    ),
}


@pytest.fixture(scope="module")
def killed(model: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The training that "resumed" goes on with, killed after its second step."""
    cwd = tmp_path_factory.mktemp("killed")
    return train(model, *RESUMED, "--run", str(cwd / "runs"), "--end-at", "2", "--end-by", "SIGKILL", cwd=cwd)


@pytest.fixture(scope="module")
def tasks_before(killed: Ran) -> dict[int, list[str]]:
    return asyncio.run(rollouts_by_task(killed.cwd / "runs"))


@pytest.fixture(scope="module")
def all_ran(model: str, killed: Ran, tasks_before: object, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    root = tmp_path_factory.mktemp("trainings")
    trainings = [
        [
            *(model, *options),
            # With another folder it would be another training than the one that was killed.
            *(
                ("--run", str(killed.cwd / "runs"))
                if name == "resumed"
                else (f"trainer.default_local_dir={root / name}",)
            ),
        ]
        for name, options in TRAININGS.items()
    ]
    return train(json.dumps(trainings), script="in_one_process.py", cwd=root, seconds=1500)


@pytest.fixture(scope="module")
def ran(all_ran: Ran) -> dict[str, Ran]:
    parts = all_ran.output.split("\nLEFT ")
    return {name: replace(all_ran, output=part) for name, part in zip(TRAININGS, parts, strict=False)}


async def rollouts_by_task(root: Path, mode: RolloutMode = "train") -> dict[int, list[str]]:
    """Return how the rollouts of a mode stand in the one run below a folder, by task."""
    folder = runs_in(root)[0]
    store = default_registry().build(
        "stores", {"name": "sqlite", "path": folder.store_file, "run_id": folder.run_id}, expected=LightningStore
    )
    found: dict[int, list[str]] = {}
    for each in await store.query_rollouts(mode_in=[mode]):
        found.setdefault((each.metadata or {})["task"], []).append(each.status)
    await store.aclose()
    return found


def check(ran: Ran, *steps: int) -> None:
    """Check what holds for every training that comes to its end."""
    assert column(ran, "step") == list(steps), ran.output[-5000:]
    assert ran.end["status"] == "succeeded"
    assert len(set(column(ran, "weights"))) == len(steps), "the served weights change with each step"


def column(ran: Ran, name: str) -> list[Any]:
    return [step[name] for step in ran.steps]


def test_nothing_is_left_of_any_training(killed: Ran, all_ran: Ran) -> None:
    assert killed.status == -signal.SIGKILL
    assert killed.left == [], "nothing outlives the process, Ray included"
    (left,) = killed.told("LEAVES")  # but what hides from Ray, as vLLM's engine does
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE, "the next one ends it"
    assert all_ran.status == 0
    assert all_ran.left == []
    assert all_ran.told("LEFT") == [{"ray": False}] * len(TRAININGS)


def test_killed_a_training_goes_on_with_the_groups_that_it_carried_over(
    killed: Ran, tasks_before: dict[int, list[str]], ran: dict[str, Ran]
) -> None:
    resumed = ran["resumed"]
    assert column(killed, "step") == [1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in [*killed.steps, *resumed.steps])
    assert resumed.end["status"] == "interrupted"
    assert column(resumed, "step") in ([2, 3, 4], [3, 4]), "it goes on from the last checkpoint"
    measured = asyncio.run(rollouts_by_task(killed.cwd / "runs", "test"))
    assert measured == {0: ["succeeded"], 1: ["succeeded"]}, "what was measured before the kill is not run again"
    after = asyncio.run(rollouts_by_task(killed.cwd / "runs"))
    succeeded = {task: statuses.count("succeeded") for task, statuses in after.items()}
    assert max(succeeded.values()) == 4, "a step's rollouts are run once"
    carried = [succeeded[task] for task in tasks_before]
    assert carried == [4] * len(tasks_before), "no other task was put in the place of a lost one"
    assert list(succeeded.values()).count(4) >= 8 * resumed.steps[-1]["step"]


def test_an_adapter_is_merged_into_what_is_served_and_gone_on_with(killed: Ran, ran: dict[str, Ran]) -> None:
    resumed = ran["resumed"]
    weights = column(resumed, "weights")
    assert len(set(weights)) == len(weights), "they change with each step"
    assert resumed.end["best"].endswith("/actor/lora_adapter")
    assert resumed.end["saved"] in weights
    first = resumed.steps[0]["step"]
    saved = Path(resumed.end["best"]).parents[2]
    before, after = (
        load_file(saved / f"global_step_{step}/actor/lora_adapter/adapter_model.safetensors")
        for step in (first - 1, first)
    )
    ups = [name for name in before if ".lora_B." in name]
    a, b = (np.concatenate([each[name].ravel() for name in ups]) for each in (before, after))
    assert a @ b > 0.9 * np.linalg.norm(a) * np.linalg.norm(b), "a step further, and not a new adapter"
    lowest = min(column(killed, "critic/score/min_before_processing"))
    assert lowest < 0, "each token costs a hundredth, by a class of our own"


def test_what_was_learned_is_kept_when_the_budget_is_used_up(ran: dict[str, Ran]) -> None:
    ended = ran["fp32"]
    assert ended.end["status"] == "budget"
    assert column(ended, "step") == [1, 2]
    assert ended.end["best"].endswith("global_step_2/actor/huggingface")
    assert ended.end["saved"] == ended.steps[-1]["weights"]
    kept = Path(ended.end["best"]).parents[2]
    assert {folder.name for folder in kept.glob("global_step_*")} == {"global_step_2"}


def test_in_fp32_what_is_learned_from_is_exactly_what_was_sampled(ran: dict[str, Ran]) -> None:
    """Whether an agent gets better by that, `examples/rl_calculator/test_train.py` tells."""
    for step in ran["fp32"].steps:
        assert step["training/rollout_probs_diff_max"] < MAX_DIFFERENCE, "also with sequences packed into one"
        assert step["training/n_triplets_learned"] > step["training/n_rollouts_learned"] == ROLLOUTS
        assert abs(step["actor/pg_loss"]) < 1e-6, "the mean over rollouts of advantages, which are 0 in each group"
        assert step["actor/entropy_loss"] == pytest.approx(step["actor/entropy"], rel=1e-5), "over rows, not padding"
        assert step["training/off_policy/trajectory_staleness/max"] == 0
    first, second = column(ran["fp32"], "actor/kl_loss")
    assert abs(first) < MAX_DIFFERENCE < second, "the model is its own reference at the start"


def test_in_bf16_a_critic_learns_and_agents_may_fail(ran: dict[str, Ran]) -> None:
    part = ran["bf16"]
    check(part, 1, 2, 3)
    assert max(column(part, "training/rollout_logprobs_diff_mean")) < 0.05
    failures = column(part, "training/n_failures")
    assert sum(failures) > 0
    assert [sum(pair) for pair in zip(failures, column(part, "training/n_rollouts_learned"), strict=True)] == [32] * 3
    assert column(part, "training/n_triplets_learned") == column(part, "training/n_rollouts_learned"), "merged turns"
    assert all(norm > 0 for name in ("critic", "actor") for norm in column(part, f"{name}/grad_norm"))
    assert [each["val/n_rollouts"] for each in (part.before, *part.steps)] == [5] * 4
    assert part.end["comparison"][0] == "test"
    assert part.end["metrics"].keys() >= {"test_reward_initial", "test_reward"}


def test_the_best_checkpoint_and_the_newest_are_kept(ran: dict[str, Ran]) -> None:
    part = ran["bf16"]
    rewards = dict(zip((1, 2, 3), column(part, "val/reward"), strict=True))
    best = max((1, 2), key=lambda step: (rewards[step], step))
    folder = Path(part.end["best"]).parents[2]
    assert {path.name for path in folder.glob("global_step_*")} == {f"global_step_{best}", "global_step_3"}
