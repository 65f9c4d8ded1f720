"""Rows in TransferQueue, and who may use it: with a real Ray, and verl's own replay buffer."""

from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq
from lightning_verl.cluster import check_queue
from lightning_verl.learning import LearnedRow
from lightning_verl.transfer import TransferQueueRows
from omegaconf import OmegaConf

from lightning_core.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def queue(cluster: None) -> Iterator[None]:
    check_queue()
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()


def row(session: int, score: float) -> LearnedRow:
    return LearnedRow(session, 0, [1, 2], [3, 4], [1, 1], [-0.5, -0.5], [0.0, score], (), 1)


def test_a_group_without_rows_does_not_end_a_run_that_filters_groups(queue: None) -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # warns while it is imported

    for uid in ("1-0", "1-1"):
        tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1})
    rows = TransferQueueRows()
    rows.begin("1-0", partition="train")
    rows.end("1-0", [], partition="train", step=1, versions=(0, 0))
    rows.end("1-1", [row(0, 0.0), row(1, 1.0)], partition="train", step=1, versions=(0, 0))
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
    assert [tag["max_global_steps"] for tag in batch.tags] == [0, 0]


def test_two_trainings_do_not_share_a_queue(queue: None) -> None:
    with pytest.raises(ConfigError, match="another training runs in this cluster of Ray"):
        check_queue()
