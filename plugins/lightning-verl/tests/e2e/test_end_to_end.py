"""Whole trainings on the processor, each in a process of its own: real Ray, FSDP, TransferQueue, proxy and store."""

import asyncio
import json
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lightning_verl.hf.generator import Generator
from watched import Ran, train

from lightning_core.registry import default_registry
from lightning_core.runs.folder import runs_in
from lightning_core.store import LightningStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MAX_DIFFERENCE = 1e-5
"""Between the probabilities that tokens were sampled with and those that the actor computes."""

ROLLOUTS = 32
"""Of a step: 8 tasks, 4 times each."""


def check(ran: Ran, *, steps: int) -> None:
    """Check what holds for every training that comes to its end, and print what it took."""
    assert ran.status == 0, ran.output[-5000:]
    assert [step["step"] for step in ran.steps] == list(range(1, steps + 1))
    weights = [step["weights"] for step in ran.steps]
    assert len(set(weights)) == steps, "the served weights change with each step"
    assert all(step["training/rollout_probs_diff_max"] < MAX_DIFFERENCE for step in ran.steps)
    assert ran.left == []
    print(f"{ran.seconds:.0f} s, {ran.peak_gib:.1f} GiB at most")


def column(ran: Ran, name: str) -> list[Any]:
    return [step[name] for step in ran.steps]


def last_step(ran: Ran) -> int:
    return int(ran.steps[-1]["step"])


def has_done(step: int) -> Callable[[str], bool]:
    """Tell of what was printed whether a step has ended."""
    return lambda printed: f'"step": {step},' in printed


def test_an_agent_of_two_turns_trains_the_model_behind_it(model: str, tmp_path: Path) -> None:
    """Whether it gets better by that, `examples/rl_calculator/test_train.py` tells."""
    sampled = "actor_rollout_ref.rollout.val_kwargs.do_sample=True"
    ran = train(model, sampled, "--test-tasks", "6", cwd=tmp_path)
    check(ran, steps=3)
    assert column(ran, "training/n_rollouts") == [ROLLOUTS] * 3
    assert column(ran, "training/n_triplets_learned") == [ROLLOUTS] * 3, "one row for each rollout"
    assert column(ran, "training/n_triplets_by_turn") == [2 * ROLLOUTS] * 3
    assert column(ran, "training/n_unmerged_rollouts") == [0] * 3
    assert column(ran, "training/off_policy/trajectory_staleness/max") == [0] * 3
    assert ran.end is not None
    assert (ran.end["status"], ran.end["succeeded"]) == ("succeeded", 3 * ROLLOUTS + 2 * 6)
    assert ran.peak_gib < 6
    # What has come of it is measured, and lies where the result says, as any program can load it.
    assert {"test_reward_initial", "test_reward"} <= ran.end["metrics"].keys()
    mode, _, difference = ran.end["comparison"]
    assert mode == "test"
    assert "n=6" in difference
    assert Generator(ran.end["best"]).fingerprint() == ran.steps[-1]["weights"]


def test_whatever_ends_it_nothing_is_left_and_it_goes_on_from_its_checkpoint(model: str, tmp_path: Path) -> None:
    arguments = (
        model,
        *("trainer.total_training_steps=50", "trainer.save_freq=1"),
        *("--tasks", "400", "--test-tasks", "2", "--run", "runs"),
    )
    killed = train(*arguments, cwd=tmp_path, until=has_done(2), with_signal=signal.SIGKILL)
    assert killed.status == -signal.SIGKILL, killed.output[-5000:]
    fails_at = last_step(killed) + 1
    failed = train(*arguments, "--fail-at", str(fails_at), cwd=tmp_path)
    assert failed.status not in (0, -signal.SIGKILL)
    assert "the disk is full" in failed.output
    interrupted = train(*arguments, cwd=tmp_path, until=has_done(fails_at + 1), with_signal=signal.SIGINT)
    assert interrupted.end is not None, interrupted.output[-5000:]
    assert interrupted.end["status"] == "interrupted"
    ran = (killed, failed, interrupted)
    assert [each.left for each in ran] == [[]] * 3, "nothing outlives the process, Ray included"
    for before, after in pairwise(ran):
        assert after.steps[0]["step"] - last_step(before) in (0, 1), "it goes on from the last checkpoint"
    mode, at_the_start, _ = interrupted.end["comparison"]
    assert mode == "test"
    assert "n=2" in at_the_start, "what was measured before the kill and the failure"
    succeeded = [each.count("succeeded") for each in asyncio.run(rollouts_by_task(tmp_path / "runs")).values()]
    assert max(succeeded) == 4, "a step's rollouts are run once"
    assert succeeded.count(4) >= 8 * last_step(interrupted)


def test_runners_in_processes_and_the_trainer_s_proxy(model: str, tmp_path: Path) -> None:
    """With what else a step can have: a reference, verl's correction without the actor, failures that have a value."""
    options = {
        "llm_proxy": {"model_list": [{"model_name": "judge", "litellm_params": {"model": "openai/judge"}}]},
        "strategy": {"name": "processes", "n_runners": 2, "concurrency": 8},
        "n_runners": None,
    }
    ran = train(
        model,
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "algorithm.rollout_correction.bypass_mode=True",
        "agentlightning.on_failure=-0.5",
        *("--agent", "flaky", "--test-tasks", "2", "--trainer", json.dumps(options)),
        cwd=tmp_path,
    )
    assert ran.status == 0, ran.output[-5000:]
    assert ran.left == []
    assert len({step["weights"] for step in ran.steps}) == 2
    assert column(ran, "training/n_rollouts_learned") == [ROLLOUTS] * 2
    assert sum(column(ran, "training/n_failures")) > 0
    assert min(column(ran, "critic/score/min_before_processing")) == -0.5
    first, second = column(ran, "actor/kl_loss")
    assert abs(first) < MAX_DIFFERENCE < second, "the model is its own reference at the start"
    assert all(norm > 0 for norm in column(ran, "actor/grad_norm"))
    assert ran.end is not None
    assert ran.end["metrics"].keys() >= {"test_reward_initial", "test_reward"}
    assert ran.end["best"].endswith(":step-2"), "it was not to be saved"
    assert not (tmp_path / "checkpoints").exists()


def test_killed_it_goes_on_with_the_groups_that_it_carried_over(model: str, tmp_path: Path) -> None:
    arguments = (
        model,
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.total_training_steps=4",
        "trainer.save_freq=1",
        *("--run", "runs"),
    )
    killed = train(*arguments, cwd=tmp_path, until=has_done(2), with_signal=signal.SIGKILL)
    assert killed.status == -signal.SIGKILL, killed.output[-5000:]
    assert killed.left == []
    before = set(asyncio.run(rollouts_by_task(tmp_path / "runs")))
    ran = train(*arguments, cwd=tmp_path)
    assert ran.status == 0, ran.output[-5000:]
    assert ran.left == []
    assert column(ran, "step")[-1] == 4
    after = asyncio.run(rollouts_by_task(tmp_path / "runs"))
    assert len(after) == 8 * (4 + 1), "of each step, and one batch ahead: none was put in the place of a lost one"
    assert before <= after.keys()
    ended = {task for task, statuses in after.items() if statuses.count("succeeded") == 4}
    assert len(ended) >= 4 * 8
    assert all(statuses.count("succeeded") <= 4 for statuses in after.values()), "none was run twice"


def test_generation_beside_training(model: str, tmp_path: Path) -> None:
    ran = train(
        model,
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "trainer.total_training_steps=2",
        cwd=tmp_path,
    )
    assert ran.status == 0, ran.output[-5000:]
    assert ran.left == []
    assert len({step["weights"] for step in ran.steps}) == 2
    first, second = ran.steps
    # Both halves of the first step were sampled from the weights at the start, and are judged by them.
    assert first["training/off_policy/trajectory_staleness_worst/max"] == 0
    assert first["training/rollout_probs_diff_max"] < MAX_DIFFERENCE
    assert second["training/off_policy/trajectory_staleness_worst/max"] <= 1
    assert ran.end is not None
    assert ran.end["failed"] == 0


async def rollouts_by_task(root: Path) -> dict[int, list[str]]:
    """Return how the training rollouts of the one run below a folder stand, by task."""
    folder = runs_in(root)[0]
    store = default_registry().build(
        "stores", {"name": "sqlite", "path": folder.store_file, "run_id": folder.run_id}, expected=LightningStore
    )
    found: dict[int, list[str]] = {}
    for each in await store.query_rollouts(mode_in=["train"]):
        found.setdefault((each.metadata or {})["task"], []).append(each.status)
    await store.aclose()
    return found


def test_a_critic_a_reference_two_workers_and_agents_that_fail(model: str, tmp_path: Path) -> None:
    ran = train(
        model,
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.rollout.n=4",
        "trainer.n_gpus_per_node=2",
        "trainer.val_before_train=True",
        "trainer.test_freq=2",
        *("--preset", "ppo", "--agent", "flaky", "--val-tasks", "5"),
        cwd=tmp_path,
    )
    check(ran, steps=3)
    failures = column(ran, "training/n_failures")
    assert sum(failures) > 0
    assert [sum(pair) for pair in zip(failures, column(ran, "training/n_rollouts_learned"), strict=True)] == [32] * 3
    first, *later = column(ran, "actor/kl_loss")
    assert abs(first) < MAX_DIFFERENCE, "the model is its own reference at the start"
    assert all(loss > MAX_DIFFERENCE for loss in later)
    assert all(norm > 0 for norm in column(ran, "critic/grad_norm"))
    assert ran.before is not None
    assert [each["val/n_rollouts"] for each in (ran.before, ran.steps[1], ran.steps[2])] == [5, 5, 5]
    assert "val/reward" not in ran.steps[0]
    assert ran.end is not None
    assert ran.end["comparison"][0] == "val", "of the first and the last validation"


def test_rollouts_weigh_the_same_however_many_rows_they_have(model: str, tmp_path: Path) -> None:
    actor = "actor_rollout_ref.actor"
    ran = train(
        model,
        *(
            "agentlightning.trace_aggregator.level=transition",
            "data.max_response_length=32",
            "data.max_prompt_length=200",
        ),
        *(f"{actor}.optim.lr=0", f"{actor}.optim.weight_decay=0", f"{actor}.entropy_coeff=0.001"),
        *(f"{actor}.ppo_mini_batch_size=4", "trainer.n_gpus_per_node=2"),
        *("trainer.total_training_steps=1", "trainer.save_freq=-1", "--agent", "uneven"),
        cwd=tmp_path,
    )
    assert ran.status == 0, ran.output[-5000:]
    (step,) = ran.steps
    assert step["training/n_triplets_learned"] > step["training/n_rollouts_learned"]
    assert abs(step["actor/pg_loss"]) < 1e-6, "the mean over rollouts of advantages, which are 0 in each group"
    assert step["actor/entropy_loss"] == pytest.approx(step["actor/entropy"], rel=1e-5), "over rows, without padding"


def test_adapters_are_merged_into_what_is_served_also_over_http(model: str, tmp_path: Path) -> None:
    options = ("actor_rollout_ref.model.lora_rank=8", "agentlightning.backend=openai")
    ran = train(model, *options, "trainer.total_training_steps=2", cwd=tmp_path)
    check(ran, steps=2)
    # Text does not lead back to the tokens of a random model, so turns are rows of their own where it does not.
    assert all(ROLLOUTS <= rows <= 2 * ROLLOUTS for rows in column(ran, "training/n_triplets_learned"))
    assert ran.end is not None
    assert ran.end["best"].endswith("global_step_2/actor")
    assert Path(ran.end["best"]).is_dir()
