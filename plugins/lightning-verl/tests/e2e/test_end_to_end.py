"""Whole trainings on the processor, each in a process of its own: real Ray, FSDP, TransferQueue, proxy and store."""

import signal
from pathlib import Path
from typing import Any

import pytest
from watched import Ran, train

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


def test_an_agent_of_two_turns_trains_the_model_behind_it(model: str, tmp_path: Path) -> None:
    ran = train(model, cwd=tmp_path)
    check(ran, steps=3)
    assert column(ran, "training/n_rollouts") == [ROLLOUTS] * 3
    assert column(ran, "training/n_triplets_learned") == [ROLLOUTS] * 3, "one row for each rollout"
    assert column(ran, "training/n_triplets_by_turn") == [2 * ROLLOUTS] * 3
    assert column(ran, "training/n_unmerged_rollouts") == [0] * 3
    assert column(ran, "training/off_policy/trajectory_staleness/max") == [0] * 3
    assert ran.end is not None
    assert (ran.end["status"], ran.end["succeeded"]) == ("succeeded", 3 * ROLLOUTS)
    assert ran.peak_gib < 6


def test_the_servers_can_be_called_over_http_instead(model: str, tmp_path: Path) -> None:
    ran = train(model, "agentlightning.backend=openai", "trainer.total_training_steps=2", cwd=tmp_path)
    check(ran, steps=2)
    # Text does not lead back to the tokens of a random model, so turns are rows of their own where it does not.
    assert all(ROLLOUTS <= rows <= 2 * ROLLOUTS for rows in column(ran, "training/n_triplets_learned"))


def test_killed_it_goes_on_from_its_checkpoint_and_runs_no_finished_rollout_again(model: str, tmp_path: Path) -> None:
    arguments = (model, "trainer.total_training_steps=4", "trainer.save_freq=1", "--run", "runs")
    killed = train(*arguments, cwd=tmp_path, until=lambda text: '"step": 2' in text, with_signal=signal.SIGKILL)
    assert killed.status == -signal.SIGKILL, killed.output[-5000:]
    assert killed.left == [], "nothing outlives the process, Ray included"
    ran = train(*arguments, cwd=tmp_path)
    assert ran.status == 0, ran.output[-5000:]
    done = max(column(killed, "step"))
    assert column(ran, "step")[-1] == 4
    assert column(ran, "step")[0] in (done, done + 1), "it goes on from the last checkpoint"
    assert ran.end is not None
    assert ran.end["succeeded"] == 4 * ROLLOUTS, "a step's rollouts are run once"
    assert ran.left == []


def test_interrupted_it_ends_with_everything_that_it_started(model: str, tmp_path: Path) -> None:
    ran = train(
        model,
        "trainer.total_training_steps=50",
        cwd=tmp_path,
        until=lambda text: '"step": 1' in text,
        with_signal=signal.SIGINT,
    )
    assert ran.end is not None, ran.output[-5000:]
    assert ran.end["status"] == "interrupted"
    assert ran.left == []


def test_when_all_agents_fail_the_run_ends_with_the_first_cause(model: str, tmp_path: Path) -> None:
    ran = train(model, "--agent", "broken", cwd=tmp_path)
    assert ran.status != 0
    assert (
        "NoRewards: step 1: none of 32 rollouts gave a reward; the first: RuntimeError: the agent broke" in ran.output
    )
    assert ran.left == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{}", "this process has started Ray already, whose workers lack what verl needs"),
        (
            '{"num_gpus": 0, "num_cpus": 8, '
            '"runtime_env": {"env_vars": {"VERL_PLATFORM": "cpu", "TRANSFER_QUEUE_ENABLE": "1"}}}',
            "Ray's cluster has 0 of GPU, the run needs 1 (trainer.nnodes=1 times trainer.n_gpus_per_node=1); start it "
            "with --num-gpus",
        ),
    ],
    ids=["environment", "resources"],
)
def test_a_ray_that_runs_for_something_else_is_refused(model: str, tmp_path: Path, options: str, message: str) -> None:
    ran = train(model, "--ray", options, cwd=tmp_path)
    assert ran.status != 0
    assert message in ran.output
    assert ran.left == []


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
    assert all(loss >= 0 for loss in column(ran, "actor/kl_loss"))
    assert all(norm > 0 for norm in column(ran, "critic/grad_norm"))
    assert ran.before is not None
    assert [each["val/n_rollouts"] for each in (ran.before, ran.steps[1], ran.steps[2])] == [5, 5, 5]
    assert "val/reward" not in ran.steps[0]


def test_adapters_are_trained_and_merged_into_what_is_served(model: str, tmp_path: Path) -> None:
    check(train(model, "actor_rollout_ref.model.lora_rank=8", cwd=tmp_path), steps=3)


def test_the_reward_rises(model: str, tmp_path: Path) -> None:
    ran = train(model, "trainer.total_training_steps=30", cwd=tmp_path, seconds=880)
    check(ran, steps=30)
    rewards = column(ran, "training/reward")
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    print(f"share of the letter a: {first:.3f} -> {last:.3f}")
    assert last > first + 0.1
