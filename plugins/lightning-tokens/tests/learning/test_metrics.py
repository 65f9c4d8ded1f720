import json

import pytest
from learning_toys import add_reward, conversation, failed, faulty, options, rollout, scored, two_choices
from lightning_tokens.learning.groups import learn_from_group
from lightning_tokens.learning.metrics import training_metrics, validation_metrics
from lightning_tokens.learning.outcomes import read_rollout

from lightning_core.adapter import TraceToTrajectories
from lightning_core.testing.adapter import TraceBuilder


def test_a_step_counts_its_rollouts_and_its_rows():
    told = options(max_prompt_length=2, max_response_length=3)
    groups = [
        [scored(1.0, ([1], [2, 3]), ([7], [8]), told=told), scored(3.0, ([1, 1, 1], [2]), told=told)],
        [
            scored(2.0, ([1], [2, 3, 4, 5]), told=told),
            scored(2.0, told=told),
            failed(([1], [2]), told=told),
            faulty(told),
        ],
        [scored(None, told=told), scored(5.0, told=told)],
    ]
    metrics = training_metrics([learn_from_group(group, options=told) for group in groups], options=told)
    counts = {name.removeprefix("training/"): value for name, value in metrics.items() if name.startswith("training/")}
    assert counts == {
        "n_rollouts": 8,
        "n_rollouts_w_trace": 7,
        "n_rollouts_w_reward": 5,
        "n_rollouts_wo_token_ids": 0,
        "n_rollouts_learned": 3,
        "n_failures": 1,
        "n_faults": 1,
        "n_truncated_rollouts": 1,
        "n_groups": 3,
        "n_groups_dropped": 1,
        "n_groups_wo_spread": 1,
        "n_triplets": 8,
        "n_triplets_prompt_too_long": 1,
        "n_triplets_wo_logprobs": 0,
        "n_triplets_learned": 4,
        "n_truncated_triplets": 1,
        "n_unmerged_rollouts": 1,
        "n_rows_first_call": 7,
        "n_rows_same_prompt": 1,
        "rows_per_rollout": pytest.approx(8 / 7),
        "n_triplets_by_turn": 8,
        "reward": pytest.approx(13 / 5),
        "reward_w_failures": pytest.approx(13 / 5),
        "avg_response_length_by_turn": pytest.approx(15 / 8),
        "max_response_length_by_turn": 4,
        "min_response_length_by_turn": 1,
    }


def test_calls_that_an_adapter_leaves_out_are_counted():
    trace = TraceBuilder()
    trace.call([1], [2])
    said = json.dumps([{"role": "system", "content": "You make titles"}, {"role": "user", "content": "hi"}])
    tokens = {"prompt_token_ids": [9], "response_token_ids": [8]}
    trace.span("chat", {"gen_ai.operation.name": "chat", "gen_ai.input.messages": said, **tokens})
    add_reward(trace, 1.0)
    adapter = TraceToTrajectories(leave_out="titles")
    ended = read_rollout(rollout(), trace.spans, options=options(), adapter=adapter)
    metrics = training_metrics([learn_from_group([ended, scored(2.0)], options=options())], options=options())
    assert (metrics["training/n_calls_left_out"], metrics["training/rows_per_rollout"]) == (1, 1.0)
    assert ended.call_rewards == (1.0,)


def test_rows_are_described_before_and_after_processing():
    told = options(max_prompt_length=2, max_response_length=3)
    group = [scored(1.0, ([1], [2, 3]), told=told), scored(3.0, ([1, 1, 1], [2]), told=told)]
    metrics = training_metrics([learn_from_group(group, options=told)], options=told)
    assert metrics["prompt_length/max_before_processing"] == 3
    assert metrics["prompt_length/max_after_processing"] == 1
    assert metrics["prompt_length/clip_ratio_before_processing"] == 0.5
    assert metrics["response_length/mean_before_processing"] == 1.5
    assert metrics["response_length/clip_ratio_after_processing"] == 0.0
    assert metrics["critic/score/mean_after_processing"] == 1.0
    assert metrics["critic/advantages/mean_after_processing"] == pytest.approx(-(0.5**0.5), rel=1e-5)


def test_a_step_of_which_nothing_is_learned_has_counts_and_no_means():
    metrics = training_metrics([learn_from_group([failed(), failed()], options=options())], options=options())
    assert metrics["training/n_failures"] == 2
    assert "training/reward" not in metrics
    assert not any(value != value for value in metrics.values())


def test_validation_counts_each_rollout_once_and_fills_nothing_in():
    ended = [scored(1.0, *conversation(3)), scored(0.0), scored(None), failed(([1], [2])), faulty()]
    metrics = validation_metrics(ended)
    counts = {"n_rollouts": 5, "n_rollouts_w_reward": 2, "n_rollouts_w_trace": 4, "n_failures": 1, "n_faults": 1}
    assert {name: metrics[f"val/{name}"] for name in counts} == counts
    assert metrics["val/reward"] == 0.5
    assert metrics["val/turn_count"] == pytest.approx((3 + 1 + 1 + 1) / 4)
    assert metrics["val/mean_response_length"] == pytest.approx((2 + 2 + 2 + 1) / 4)
    assert metrics["val/sum_response_length"] == pytest.approx((6 + 2 + 2 + 1) / 4)


def test_a_turn_is_a_call_however_many_choices_it_has():
    metrics = validation_metrics([two_choices(1.0, 2.0)])
    assert metrics["val/turn_count"] == 2
    assert metrics["val/sum_response_length"] == 4


def test_validation_tells_of_each_source_of_the_data():
    metrics = validation_metrics([scored(1.0), scored(3.0), scored(5.0)], sources=["easy", "hard", "easy"])
    assert metrics["val/easy/reward"] == 3.0
    assert metrics["val/hard/n_rollouts"] == 1
    assert "val/hard/reward_low" not in metrics
    assert metrics["val/reward"] == 3.0


def test_what_a_failure_is_worth_is_no_reward_that_an_agent_gave():
    told = options(on_failure=-1.0)
    group = [scored(1.0, told=told), scored(0.0, told=told), failed(*conversation(1), told=told)]
    training = training_metrics([learn_from_group(group, options=told)], options=told)
    assert (training["training/reward"], training["training/reward_w_failures"]) == (0.5, 0.0)
    validation = validation_metrics(group)
    assert (validation["val/reward"], validation["val/reward_w_failures"]) == (0.5, 0.0)
    only = validation_metrics([failed(*conversation(1), told=told)])
    assert "val/reward" not in only
    assert only["val/reward_w_failures"] == -1.0


def test_how_often_a_task_is_run_makes_its_reward_no_surer():
    rewards = (0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)
    once = validation_metrics([scored(reward) for reward in rewards])
    often = validation_metrics(
        [scored(reward) for reward in rewards for _ in range(8)],
        tasks=[task for task in range(len(rewards)) for _ in range(8)],
    )
    for name in ("val/reward", "val/reward_low", "val/reward_high"):
        assert often[name] == once[name]
    assert often["val/n_rollouts"] == 64


def test_each_task_weighs_the_same_in_a_validation_whatever_it_has_lost():
    ended = [scored(1.0), scored(1.0), scored(0.0), scored(None)]
    metrics = validation_metrics(ended, tasks=["easy", "easy", "hard", "hard"], sources=["a", "a", "b", "b"])
    assert metrics["val/reward"] == 0.5
    assert (metrics["val/a/reward"], metrics["val/b/reward"]) == (1.0, 0.0)
