"""verl and TransferQueue in a real Ray, one for all of these tests."""

import asyncio
import os
import re
import signal
import traceback
import warnings
from collections.abc import Iterator
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
from toy_trainer import saved, trainer_in

from lightning_core.errors import AlgorithmError, ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.cluster import logs_named, ray_cluster
    from lightning_verl.queue import StoredRows, TransferQueueRows, filter_by_lessons, own_queue
    from lightning_verl.trainer import RAY_ENDS, CancelsCalls
    from verl.workers.rollout import llm_server
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def shared_queue(shared_ray: None) -> Iterator[None]:
    with own_queue(QUEUE):
        yield


@pytest.fixture
def queue(shared_queue: None) -> None:
    """A TransferQueue in it, without rows."""
    for partition, rows in (tq.kv_list() or {}).items():
        if rows:
            tq.kv_clear(keys=list(rows), partition_id=partition)


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


def worker() -> Any:
    """Start a worker that fails as it is to; as a class that Ray takes without importing this file, and verl."""

    class Worker:
        def begin_another(self, queue: Any) -> None:
            import verl.workers.engine
            import verl.workers.engine_workers  # noqa: F401 - it warns of engines that are not installed
            from lightning_verl.queue import own_queue

            with own_queue(queue):
                raise AssertionError("it took the queue of another training for its own")

        def fail(self, how: str) -> None:
            if how == "raised":
                raise ValueError("no such layer")
            if how == "was killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "crashed":
                os.kill(os.getpid(), signal.SIGSEGV)
            try:
                raise RuntimeError("CUDA out of memory")
            except RuntimeError:
                traceback.print_exc()
                os._exit(1)

    return ray.remote(Worker).options(num_cpus=0, runtime_env={"env_vars": {"VERL_PLATFORM": "cpu"}}).remote()


@pytest.fixture(scope="module")
def worker_of_verl(shared_ray: None) -> Any:
    return worker()


def test_a_second_training_in_a_cluster_is_refused_and_the_first_keeps_its_queue(
    queue: None, worker_of_verl: Any
) -> None:
    tq.kv_put(key="mine", partition_id="first", tag={"step": 1})
    with pytest.raises(ConfigError, match="another training runs in this cluster of Ray"):
        ray.get(worker_of_verl.begin_another.remote(QUEUE))
    assert tq.kv_list("first")["first"]["mine"] == {"step": 1}


def test_a_ray_that_this_process_has_started_is_refused(shared_ray: None) -> None:
    refused = pytest.raises(ConfigError, match="this process has started Ray already, for another training or someth")
    with refused, ray_cluster(OmegaConf.create({})):
        pass


def test_a_field_in_bf16_as_a_critic_on_a_gpu_writes_it_is_read_as_numbers(queue: None) -> None:
    rows = [torch.tensor(each, dtype=torch.bfloat16) for each in ([0.5, -1.25], [2.0])]
    fields = TensorDict({"values": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=2)
    keys, tags = ["1-0_0_0", "1-0_1_0"], [{"status": "success"}] * 2
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
    batch = SimpleNamespace(keys=keys, partition_id="train")
    found = StoredRows(batch, ["values", "none"]).numbers("values")
    assert found is not None
    assert [each.tolist() for each in found] == [[0.5, -1.25], [2.0]]


async def test_new_groups_have_other_names_than_those_that_a_checkpoint_has_kept(queue: None, tmp_path: Path) -> None:
    def names(trainer: Any, count: int) -> list[str]:
        return [str(uid) for _ in range(count) for uid in trainer._fetch_one_gen_batch()["uid"]]

    trainer = trainer_in(tmp_path, "colocate_async")
    trainer.global_steps = 3
    begun = names(trainer, 1)
    trainer.global_steps = 4  # which ends in its middle: what the third step has learned is saved
    begun += names(trainer, 11)
    assert begun == ["3-0", *(f"4-{number}" for number in range(11))]
    for uid in begun[:-1]:
        tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "running", "global_steps": 4})
    tq.kv_put(key="4-10_0_0", partition_id="train", tag={"status": "success"})  # learned from, the group is forgotten
    await saved(trainer, 3)
    tq.kv_clear(keys=list(tq.kv_list("train")["train"]), partition_id="train")  # as a new process has it

    resumed = trainer_in(tmp_path, "colocate_async")
    resumed._load_checkpoint()
    resumed.global_steps += 1
    assert names(resumed, 2) == ["4-11", "4-12"]
    resumed.global_steps += 1
    assert names(resumed, 1) == ["5-0"]


def endless() -> Any:
    """Return a class as Ray takes it without importing this file, and verl."""

    class Endless:
        """Generates until its call is cancelled, as an engine does whose answer is long."""

        def __init__(self) -> None:
            self._happened: asyncio.Queue[str] = asyncio.Queue()

        async def generate(self, **_: Any) -> None:
            self._happened.put_nowait("begun")
            try:
                await asyncio.Event().wait()
            finally:
                self._happened.put_nowait("cancelled")

        async def next(self) -> str:
            return await self._happened.get()

    return ray.remote(Endless).options(num_cpus=0, max_concurrency=8).remote()


async def test_a_cancelled_call_ends_at_the_server_and_frees_its_place(shared_ray: None) -> None:
    RAY_ENDS.clear()  # a training of this process may have ended before
    server = endless()
    balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote({"first": server})
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    for name in ("LLMServerClient", "FullyAsyncLLMServerClient"):
        client = type("Client", (CancelsCalls, getattr(llm_server, name)), {})(config, balancer)
        call = asyncio.create_task(client.generate(name, prompt_ids=[1], sampling_params={"max_tokens": 8}))
        async with asyncio.timeout(120):
            assert await server.next.remote() == "begun"
            assert await balancer.get_total_inflight.remote() == 1
            call.cancel()
            assert await server.next.remote() == "cancelled"
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await balancer.get_total_inflight.remote() == 0
    RAY_ENDS.set()
    try:
        with pytest.raises(RuntimeError, match="the training has ended, and with it the model"):
            await client.generate("late", prompt_ids=[1], sampling_params={"max_tokens": 8})
    finally:
        RAY_ENDS.clear()


DIED = "The actor died unexpectedly before finishing this task.; "
FAILURES = {
    "raised": ("ValueError: no such layer; ", None),
    "died of an error": (DIED, "RuntimeError: CUDA out of memory"),
    "crashed": (DIED, "Fatal Python error: Segmentation fault"),
    "was killed": (DIED, None),
}


def check_failure(worker: Any, how: str) -> str:
    """Have a worker fail, and return what its log has."""
    says, quotes = FAILURES[how]
    with pytest.raises(AlgorithmError) as caught, logs_named():
        ray.get(worker.fail.remote(how))
    said = str(caught.value)
    path = re.search(r"its log is ([^,\s]+)", said)
    assert path is not None, said
    assert said.startswith(f"a worker of verl failed: {says}")
    assert said.endswith(f"the last error there: {quotes}" if quotes else path[1])
    return Path(path[1]).read_text()


def test_a_worker_of_verl_that_fails_names_its_log_and_one_that_dies_is_quoted(worker_of_verl: Any) -> None:
    for how in ("raised", "died of an error"):
        assert "engine is not available" in check_failure(worker_of_verl, how), "what verl warns of at its import"


@pytest.mark.parametrize("how", ["crashed", "was killed"])
def test_of_a_worker_that_was_killed_nothing_is_quoted_but_a_signal(how: str, shared_ray: None) -> None:
    check_failure(worker(), how)
