"""Whole trainings on the processor, one after another in a process: FSDP, TransferQueue, proxy, store."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from watched import Ran, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MAX_DIFFERENCE = 1e-5
"""Between the probabilities that tokens were sampled with and those that the actor computes."""

ROLLOUTS = 32
"""Of a step: 8 tasks, 4 times each; calls of the first one of the agent that grows, which then makes two in each."""

JUDGE = {"model_list": [{"model_name": "judge", "litellm_params": {"model": "openai/judge"}}]}
ACTOR = "actor_rollout_ref.actor"


def budget(calls: int) -> tuple[str, ...]:
    return "--agent", "growing", "--trainer", json.dumps({"budget": {"calls": calls}, "llm_proxy": JUDGE})


TRAININGS: dict[str, tuple[str, ...]] = {
    # It would last for a second step like the first one, so no checkpoint is written before that.
    "budget": ("trainer.total_training_steps=4", *budget(2 * ROLLOUTS + ROLLOUTS // 2)),
    "failure": (
        *("trainer.total_training_steps=4", "agentlightning.checkpoint_minutes=0.0001"),  # after each step
        *("--end-at", "3", "--end-by", "failure", *budget(1000)),
    ),
    "success": ("trainer.total_training_steps=4", "agentlightning.checkpoint_minutes=0.0001", *budget(1000)),
    # Servers beside the training, and failures that have a value.
    "separate": (
        *("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=2"),
        *("trainer.total_training_steps=2", "agentlightning.on_failure=-0.5", "--agent", "flaky"),
    ),
    # A critic, a reference, two workers, runners in processes, and both kinds of measuring.
    "critic": (
        *(f"{ACTOR}.use_kl_loss=True", "actor_rollout_ref.rollout.n=4", "trainer.n_gpus_per_node=2"),
        *("trainer.val_before_train=True", "trainer.test_freq=2", "trainer.save_freq=-1"),
        *("--preset", "ppo", "--agent", "flaky", "--val-tasks", "5", "--test-tasks", "2", "--trainer"),
        json.dumps(
            {
                "llm_proxy": JUDGE,
                "strategy": {"name": "processes", "n_runners": 2, "concurrency": 8},
                "n_runners": None,
            }
        ),
    ),
    "uneven": (
        "agentlightning.trace_aggregator.level=transition",
        *("data.max_response_length=32", "data.max_prompt_length=200"),
        *(f"{ACTOR}.optim.lr=0", f"{ACTOR}.optim.weight_decay=0", f"{ACTOR}.entropy_coeff=0.001"),
        *(f"{ACTOR}.ppo_mini_batch_size=4", "trainer.n_gpus_per_node=2"),
        *("trainer.total_training_steps=1", "trainer.save_freq=-1", "--agent", "uneven"),
    ),
    "adapters": (
        *("actor_rollout_ref.model.lora_rank=8", "agentlightning.backend=openai"),
        *("trainer.total_training_steps=2", "trainer.n_gpus_per_node=2", "--own-classes"),
    ),
}
"""Options by name. The first three are one run."""


@pytest.fixture(scope="module")
def all_ran(model: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    root = tmp_path_factory.mktemp("trainings")
    trainings = []
    for number, options in enumerate(TRAININGS.values()):
        run = ("--run", str(root / "runs")) if number < 3 else ()
        trainings.append(
            [model, f"trainer.default_local_dir={root / 'checkpoints' / str(max(number, 2))}", *options, *run]
        )
    return train(json.dumps(trainings), script="in_one_process.py", cwd=root, seconds=1500)


@pytest.fixture(scope="module")
def ran(all_ran: Ran) -> dict[str, Ran]:
    parts = all_ran.output.split("\nLEFT ")
    return {name: replace(all_ran, output=part) for name, part in zip(TRAININGS, parts, strict=False)}


def check(ran: Ran, *steps: int) -> None:
    """Check what holds for every training that comes to its end."""
    assert column(ran, "step") == list(steps), ran.output[-5000:]
    assert ran.end["status"] == "succeeded"
    assert len(set(column(ran, "weights"))) == len(steps), "the served weights change with each step"


def column(ran: Ran, name: str) -> list[Any]:
    return [step[name] for step in ran.steps]


def test_nothing_is_left_of_any_training(all_ran: Ran) -> None:
    assert all_ran.status == 0
    assert all_ran.left == []
    assert all_ran.told("LEFT") == [{"ray": False}] * len(TRAININGS)


def test_what_was_learned_is_kept_when_the_budget_is_used_up(ran: dict[str, Ran]) -> None:
    ended = ran["budget"]
    assert ended.end["status"] == "budget"
    assert column(ended, "step") == [1]
    assert ended.end["best"].endswith("global_step_1/actor/huggingface")
    assert ended.end["saved"] == ended.steps[-1]["weights"]


def test_after_its_budget_and_a_failure_a_training_goes_on_to_its_end(ran: dict[str, Ran]) -> None:
    failed = ran["failure"]
    assert "the disk is full" in failed.told("FAILED")[0]
    assert column(failed, "step") == [2, 3]
    whole = ran["success"]
    first, *_ = column(whole, "step")
    check(whole, *range(first, 5))
    assert first in (3, 4), "it goes on from the last checkpoint"
    assert whole.end["succeeded"] == 4 * ROLLOUTS, "no task is skipped, and what had ended is not run again"
    assert whole.end["saved"] == whole.steps[-1]["weights"]
    kept = {folder.name for folder in Path(whole.end["best"]).parents[2].glob("global_step_*")}
    assert kept == {"global_step_3", "global_step_4"}


def test_an_agent_of_two_turns_trains_the_model_behind_it(ran: dict[str, Ran]) -> None:
    """Whether it gets better by that, `examples/rl_calculator/test_train.py` tells."""
    for step in [*ran["failure"].steps, *ran["success"].steps]:
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
    check(part, 1, 2, 3)
    assert max(column(part, "training/rollout_probs_diff_max")) < MAX_DIFFERENCE
    failures = column(part, "training/n_failures")
    assert sum(failures) > 0
    assert [sum(pair) for pair in zip(failures, column(part, "training/n_rollouts_learned"), strict=True)] == [32] * 3
    first, *later = column(part, "actor/kl_loss")
    assert abs(first) < MAX_DIFFERENCE, "the model is its own reference at the start"
    assert all(loss > MAX_DIFFERENCE for loss in later)
    assert all(norm > 0 for norm in column(part, "critic/grad_norm"))
    assert [each["val/n_rollouts"] for each in (part.before, part.steps[1], part.steps[2])] == [5, 5, 5]
    assert "val/reward" not in part.steps[0]
    assert part.end["comparison"][0] == "test"
    assert part.end["metrics"].keys() >= {"test_reward_initial", "test_reward"}
    assert part.end["best"].endswith(":step-3"), "it was not to be saved"


def test_rollouts_weigh_the_same_however_many_rows_they_have(ran: dict[str, Ran]) -> None:
    (step,) = ran["uneven"].steps
    assert step["training/n_triplets_learned"] > step["training/n_rollouts_learned"]
    assert abs(step["actor/pg_loss"]) < 1e-6, "the mean over rollouts of advantages, which are 0 in each group"
    assert step["actor/entropy_loss"] == pytest.approx(step["actor/entropy"], rel=1e-5), "over rows, without padding"


def test_adapters_are_merged_into_what_is_served_also_over_http(ran: dict[str, Ran]) -> None:
    part = ran["adapters"]
    check(part, 1, 2)
    assert max(column(part, "training/rollout_probs_diff_max")) < MAX_DIFFERENCE
    assert min(column(part, "critic/score/min_before_processing")) < 0, "each token costs a hundredth"
    # Text does not lead back to the tokens of a random model, so turns are rows of their own where it does not.
    assert all(ROLLOUTS <= rows <= 2 * ROLLOUTS for rows in column(part, "training/n_triplets_learned"))
    assert part.end["best"].endswith("global_step_2/actor/lora_adapter")
    assert part.end["saved"] == part.steps[-1]["weights"]
