"""Rows in TransferQueue, and who may use it: with a real Ray, and verl's own replay buffer."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import transfer_queue as tq
from lightning_tokens.learning.groups import LearnedRow, Lesson
from omegaconf import OmegaConf
from tensordict import TensorDict

from lightning_core.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.cluster import ray_cluster
    from lightning_verl.verl_internals.queue import (
        StoredRows,
        TaskNumbers,
        TransferQueueRows,
        filter_by_lessons,
        own_queue,
    )

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]

QUEUE = OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}})


def row(session: int, score: float, index: int = 0) -> LearnedRow:
    return LearnedRow(session, index, [1, 2], [3, 4], [1, 1], [-0.5, -0.5], [0.0, score], (), 1, (0, session))


def lesson(*rows: LearnedRow, only_reward: float | None = None) -> Lesson:
    return Lesson((), rows, only_reward=only_reward)


def filtering(mode: str, *, size: int) -> Any:
    """Return verl's buffer of a mode, which leaves groups out."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync  # warn while they are imported

    buffer = (ReplayBuffer if mode == "sync" else ReplayBufferAsync)(
        mode,
        OmegaConf.create({}),
        8,
        "drop",
        {},
        refill_fn=lambda count: None,
        filter_groups_metric="reward",
        train_batch_size=size,
        gen_batch_size=1,
    )
    filter_by_lessons(buffer)
    return buffer


def ask(*uids: str) -> TransferQueueRows:
    rows = TransferQueueRows()
    for uid in uids:
        tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1})
        rows.begin(uid, partition="train")
    return rows


def test_a_group_without_rows_does_not_end_a_run_that_filters_groups(queue: None) -> None:
    rows = ask("1-0", "1-1")
    rows.end("1-0", lesson(), partition="train", step=1)
    rows.end("1-1", lesson(row(0, 0.0), row(1, 1.0)), partition="train", step=1)
    batch, _ = filtering("sync", size=2).sample(1, "train", 2)
    assert sorted(batch.keys) == ["1-1_0_0", "1-1_1_0"]
    assert [(tag["min_global_steps"], tag["max_global_steps"]) for tag in batch.tags] == [(0, 0), (0, 1)]


def test_groups_are_left_out_by_their_rewards_and_not_by_those_of_rows_also_from_a_checkpoint(
    queue: None, tmp_path: Path
) -> None:
    rows = ask("2-0", "2-1")
    rows.end("2-0", lesson(row(0, 0.0), row(0, 1.0, 1), row(1, 0.0), only_reward=1.0), partition="train", step=2)
    rows.end("2-1", lesson(row(0, 1.0), row(1, 1.0)), partition="train", step=2)  # each at another call
    tq.save_checkpoint(str(tmp_path))
    tq.kv_clear(keys=list(tq.kv_list("train")["train"]), partition_id="train")
    tq.load_checkpoint(str(tmp_path))
    batch, metrics = filtering("colocate_async", size=1).sample(2, "train", 1)
    assert sorted(batch.keys) == ["2-1_0_0", "2-1_1_0"]
    assert metrics["training/filter_groups/evicted_samples"] == 1
    assert metrics["_dapo_filtered_reward_counts"] == {1.0: 1}


@ray.remote(num_cpus=0)
def begin_another() -> None:
    with own_queue(QUEUE):
        raise AssertionError("it took the queue of another training for its own")


def test_a_second_training_in_a_cluster_is_refused_and_the_first_keeps_its_queue(queue: None) -> None:
    tq.kv_put(key="mine", partition_id="first", tag={"step": 1})
    with pytest.raises(ConfigError, match="another training runs in this cluster of Ray"):
        ray.get(begin_another.remote())
    assert tq.kv_list("first")["first"]["mine"] == {"step": 1}


def test_a_ray_that_this_process_has_started_is_refused(shared_ray: None) -> None:
    refused = pytest.raises(ConfigError, match="this process has started Ray already, for another training or someth")
    with refused, ray_cluster(OmegaConf.create({})):
        pass


def test_verl_goes_through_as_many_tasks_as_it_is_told() -> None:
    tasks = TaskNumbers("3", tokenizer=None, processor=None, config=None)
    assert [task["index"] for task in tasks] == [0, 1, 2]
    assert len(TaskNumbers("3", max_samples=2)) == 2
    assert len(TaskNumbers("3", max_samples=9)) == 3
    with pytest.raises(IndexError):
        tasks[3]


def test_a_field_in_bf16_as_a_critic_on_a_gpu_writes_it_is_read_as_numbers(queue: None) -> None:
    values = torch.nested.as_nested_tensor(
        [torch.tensor([0.5, -1.25], dtype=torch.bfloat16), torch.tensor([2.0], dtype=torch.bfloat16)],
        layout=torch.jagged,
    )
    tq.kv_batch_put(
        keys=["1-0_0_0", "1-0_1_0"],
        partition_id="train",
        fields=TensorDict({"values": values}, batch_size=2),
        tags=[{"status": "success"}] * 2,
    )
    batch = SimpleNamespace(keys=["1-0_0_0", "1-0_1_0"], partition_id="train")
    found = StoredRows(batch, ["values", "none"]).numbers("values")
    assert found is not None
    assert [each.tolist() for each in found] == [[0.5, -1.25], [2.0]]
