"""Rows in TransferQueue, and who may use it: with a real Ray, and verl's own replay buffer."""

from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq
from lightning_verl.cluster import ray_cluster
from lightning_verl.learning import LearnedRow
from lightning_verl.run_queue import check_queue, own_queue
from lightning_verl.transfer import TransferQueueRows
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]

QUEUE = OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def queue(cluster: None) -> Iterator[None]:
    check_queue()
    with own_queue(QUEUE):
        yield
    check_queue()


def row(session: int, score: float) -> LearnedRow:
    return LearnedRow(session, 0, [1, 2], [3, 4], [1, 1], [-0.5, -0.5], [0.0, score], (), 1, (0, session))


def test_a_group_without_rows_does_not_end_a_run_that_filters_groups(queue: None) -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # warns while it is imported

    for uid in ("1-0", "1-1"):
        tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1})
    rows = TransferQueueRows()
    rows.begin("1-0", partition="train")
    rows.end("1-0", [], partition="train", step=1)
    rows.end("1-1", [row(0, 0.0), row(1, 1.0)], partition="train", step=1)
    buffer = ReplayBuffer(
        "sync",
        OmegaConf.create({}),
        8,
        "drop",
        {},
        refill_fn=lambda count: None,
        filter_groups_metric="reward",
        train_batch_size=2,
        gen_batch_size=1,
    )
    batch, _ = buffer.sample(1, "train", 2)
    assert sorted(batch.keys) == ["1-1_0_0", "1-1_1_0"]
    assert [(tag["min_global_steps"], tag["max_global_steps"]) for tag in batch.tags] == [(0, 0), (0, 1)]


@ray.remote(num_cpus=0)
def begin_another() -> None:
    """Begin as one does who had looked a moment before there was a queue."""
    with own_queue(QUEUE):
        raise AssertionError("it took the queue of another training for its own")


def test_a_second_training_is_refused_also_at_the_same_moment_and_the_first_keeps_its_queue(queue: None) -> None:
    tq.kv_put(key="mine", partition_id="first", tag={"step": 1})
    with pytest.raises(ConfigError, match="another training runs in this cluster of Ray"):
        check_queue()
    with pytest.raises(ConfigError, match="another training runs in this cluster of Ray"):
        ray.get(begin_another.remote())
    assert tq.kv_list("first")["first"]["mine"] == {"step": 1}


def test_a_ray_that_runs_for_something_else_is_refused(cluster: None) -> None:
    refused = pytest.raises(
        ConfigError, match="this process has started Ray already, whose workers lack what verl needs"
    )
    with refused, ray_cluster(OmegaConf.create({})):
        pass
