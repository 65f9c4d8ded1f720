"""Whole trainings on the processor, all but one of them after another in a process: FSDP, TransferQueue, proxy, store.

The first one is killed in a process of its own, and gone on with.
"""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from watched import Ran, train

from lightning_core.registry import default_registry
from lightning_core.runs.folder import runs_in
from lightning_core.store import LightningStore
from lightning_core.types import RolloutMode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MAX_DIFFERENCE = 1e-5
"""Between the probabilities that tokens were sampled with and those that the actor computes."""

ROLLOUTS = 32
"""Of a step: 8 tasks, 4 times each; calls of the first one of the agent that grows, which then makes two in each."""

JUDGE = {"model_list": [{"model_name": "judge", "litellm_params": {"model": "openai/judge"}}]}
ACTOR = "actor_rollout_ref.actor"


def budget(calls: int) -> tuple[str, ...]:
    return "--agent", "growing", "--trainer", json.dumps({"budget": {"calls": calls}, "llm_proxy": JUDGE})


# An adapter in parts, groups that are carried over from step to step, no probabilities of the actor, own classes.
RESUMED = (
    *("actor_rollout_ref.model.lora_rank=8", "trainer.n_gpus_per_node=2", "trainer.save_freq=1", "--own-classes"),
    *("trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=50"),
    "algorithm.rollout_correction.bypass_mode=True",
    *("--tasks", "400", "--test-tasks", "2"),
)

TRAININGS: dict[str, tuple[str, ...]] = {
    "resumed": (*RESUMED, "--end-at", "4", "--end-by", "SIGINT"),
    # It would last for a second step like the first one, so no checkpoint is written before that.
    "budget": ("trainer.total_training_steps=3", *budget(2 * ROLLOUTS + ROLLOUTS // 2)),
    "success": ("trainer.total_training_steps=3", "agentlightning.checkpoint_minutes=0.0001", *budget(1000)),
    # Servers beside the training, and failures that have a value.
    "separate": (
        *("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=2"),
        *("trainer.total_training_steps=2", "agentlightning.on_failure=-0.5", "--agent", "flaky"),
    ),
    # A critic, a reference, two workers, runners in processes, and both kinds of measuring.
    "critic": (
        *(f"{ACTOR}.use_kl_loss=True", "actor_rollout_ref.rollout.n=4", "trainer.n_gpus_per_node=2"),
        *("trainer.val_before_train=True", "trainer.test_freq=2", "trainer.save_freq=-1"),
        *("trainer.total_training_steps=2", "--preset", "ppo", "--agent", "flaky"),
        *("--val-tasks", "5", "--test-tasks", "2", "--trainer"),
        json.dumps(
            {
                "llm_proxy": JUDGE,
                "strategy": {"name": "processes", "n_runners": 2, "concurrency": 8},
                "n_runners": None,
            }
        ),
    ),
    # Calls over HTTP, and a failure after its one step.
    "uneven": (
        *("agentlightning.trace_aggregator.level=transition", "agentlightning.backend=openai"),
        *("data.max_response_length=32", "data.max_prompt_length=200"),
        *(f"{ACTOR}.optim.lr=0", f"{ACTOR}.optim.weight_decay=0", f"{ACTOR}.entropy_coeff=0.001"),
        *(f"{ACTOR}.ppo_mini_batch_size=4", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=1"),
        *("trainer.save_freq=-1", "--agent", "uneven", "--end-at", "1", "--end-by", "failure"),
    ),
}
"""Options by name. The second and the third are one run."""


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
    runs = {"resumed": killed.cwd / "runs", "budget": root / "runs", "success": root / "runs"}
    trainings = [
        [
            *(model, *options),
            *(("--run", str(runs[name])) if name in runs else (f"trainer.default_local_dir={root / name}",)),
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
    ended = ran["budget"]
    assert ended.end["status"] == "budget"
    assert column(ended, "step") == [1]
    assert ended.end["best"].endswith("global_step_1/actor/huggingface")
    assert ended.end["saved"] == ended.steps[-1]["weights"]


def test_after_its_budget_a_training_goes_on_to_its_end(ran: dict[str, Ran]) -> None:
    whole = ran["success"]
    check(whole, 2, 3)
    assert whole.end["succeeded"] == 3 * ROLLOUTS, "no task is skipped, and what had ended is not run again"
    assert whole.end["saved"] == whole.steps[-1]["weights"]
    kept = {folder.name for folder in Path(whole.end["best"]).parents[2].glob("global_step_*")}
    assert kept == {"global_step_2", "global_step_3"}


def test_an_agent_of_two_turns_trains_the_model_behind_it(ran: dict[str, Ran]) -> None:
    """Whether it gets better by that, `examples/rl_calculator/test_train.py` tells."""
    for step in ran["success"].steps:
        assert step["training/rollout_probs_diff_max"] < MAX_DIFFERENCE
        assert step["training/n_rollouts"] == step["training/n_triplets_learned"] == ROLLOUTS, "one row for each"
        assert step["training/n_triplets_by_turn"] == 2 * ROLLOUTS or step["step"] == 2
        assert step["training/n_unmerged_rollouts"] == 0
        assert step["training/off_policy/trajectory_staleness/max"] == 0


def test_generation_beside_training_and_failures_that_have_a_value(ran: dict[str, Ran]) -> None:
    part = ran["separate"]
    check(part, 1, 2)
    first, second = part.steps
    # Both halves of the first step were sampled from the weights at the start, and are judged by them.
    assert first["training/off_policy/trajectory_staleness_worst/max"] == 0
    assert first["training/rollout_probs_diff_max"] < MAX_DIFFERENCE
    assert second["training/off_policy/trajectory_staleness_worst/max"] <= 1
    assert part.end["failed"] > 0
    assert sum(column(part, "training/n_failures")) > 0
    assert column(part, "training/n_rollouts_learned") == [ROLLOUTS] * 2
    assert min(column(part, "critic/score/min_before_processing")) == -0.5
    assert all(norm > 0 for norm in column(part, "actor/grad_norm"))


def test_a_critic_a_reference_two_workers_and_agents_that_fail(ran: dict[str, Ran]) -> None:
    """With runners in processes, and the trainer's proxy."""
    part = ran["critic"]
    check(part, 1, 2)
    assert max(column(part, "training/rollout_probs_diff_max")) < MAX_DIFFERENCE
    failures = column(part, "training/n_failures")
    assert sum(failures) > 0
    assert [sum(pair) for pair in zip(failures, column(part, "training/n_rollouts_learned"), strict=True)] == [32] * 2
    first, *later = column(part, "actor/kl_loss")
    assert abs(first) < MAX_DIFFERENCE, "the model is its own reference at the start"
    assert all(loss > MAX_DIFFERENCE for loss in later)
    assert all(norm > 0 for norm in column(part, "critic/grad_norm"))
    assert [each["val/n_rollouts"] for each in (part.before, part.steps[1])] == [5, 5]
    assert "val/reward" not in part.steps[0]
    assert part.end["comparison"][0] == "test"
    assert part.end["metrics"].keys() >= {"test_reward_initial", "test_reward"}
    assert part.end["best"].endswith(":step-2"), "it was not to be saved"


def test_rollouts_weigh_the_same_however_many_rows_they_have_also_over_http(ran: dict[str, Ran]) -> None:
    (step,) = ran["uneven"].steps
    assert step["training/n_triplets_learned"] > step["training/n_rollouts_learned"]
    assert abs(step["actor/pg_loss"]) < 1e-6, "the mean over rollouts of advantages, which are 0 in each group"
    assert step["actor/entropy_loss"] == pytest.approx(step["actor/entropy"], rel=1e-5), "over rows, without padding"
    assert step["training/rollout_probs_diff_max"] < MAX_DIFFERENCE
    assert ran["uneven"].told("FAILED") == ["OSError: the disk is full"], "which ends the training"
