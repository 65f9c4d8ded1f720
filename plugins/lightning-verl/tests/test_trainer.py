"""What verl's own trainer saves and goes on from, with what is changed in it. Models are folders without weights."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import transfer_queue as tq
from lightning_verl.bridge import Bridge
from lightning_verl.checkpoints import Schedule
from lightning_verl.config import load_settings
from lightning_verl.ending import Ending, Enough
from lightning_verl.manager import RolloutManager
from lightning_verl.training import Parts
from omegaconf import OmegaConf

from lightning_core.errors import AlgorithmError, ConfigError
from lightning_core.store import InMemoryLightningStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.verl_internals.trainer import AgentLightningTrainer, LightningMixin, make_trainer_class

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


class Models:
    """Saves and loads in the place of workers."""

    def __init__(self, n_workers: int = 1) -> None:
        self.loaded: list[str] = []
        self.updates: list[tuple[list[str], dict[str, Any]]] = []
        self._dispatch_info: dict[str, list[int]] = {}
        self._n_workers = n_workers

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return list(range(self._n_workers))

    def update_actor(self, batch: Any) -> None:
        self.updates.append((list(batch.keys), dict(batch.extra_info)))

    train_mini_batch = update_actor

    def save_checkpoint(self, local_path: str, *_: Any, **__: Any) -> None:
        Path(local_path).mkdir(parents=True)

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        self.loaded.append(Path(local_path).parent.name)


class Loader:
    """Gives one task after the other."""

    def __init__(self) -> None:
        self.fetched = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import numpy as np

        while True:
            self.fetched += 1
            numbers = np.array([self.fetched - 1], dtype=object)
            yield {"raw_prompt": numbers, "index": numbers}

    def state_dict(self) -> dict[str, int]:
        return {"fetched": self.fetched}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.fetched = state["fetched"]


class Saves:
    async def save(self, step: int) -> None: ...


def trainer_in(folder: Path, mode: str = "sync", *, outcome: Any = None, serving: Any = None, **more: Any) -> Any:
    """Return verl's trainer with all that it needs to save, to load, and to fetch tasks."""
    settings = load_settings(
        {
            "agentlightning.device": "cpu",
            "actor_rollout_ref.model.path": "tiny",
            "trainer.default_local_dir": str(folder),
            "trainer.v1.trainer_mode": mode,
            "data.train_batch_size": 1,
            **more,
        },
        preset="grpo",
    )
    bridge = Bridge(asyncio.get_running_loop())
    manager = RolloutManager(
        InMemoryLightningStore(),
        bridge=bridge,
        serving=cast(Any, None),
        tasks={},
        group_size={},
        batch_size=1,
        options=settings.learning,
        key="k",
    )
    parts = Parts(
        bridge,
        manager,
        serving=cast(Any, serving),
        outcome=cast(Any, outcome or Saves()),
        schedule=Schedule(600),
        ending=Ending(),
        options=settings.learning,
        report=lambda metrics, step: None,
        keeps_best=settings.keeps_best,
    )
    trainer = make_trainer_class(mode)(OmegaConf.create(settings.verl), parts)
    trainer.actor_rollout_wg, trainer.train_dataloader, trainer.train_dataloader_it = Models(), Loader(), None
    return trainer


async def saved(trainer: Any, step: int) -> None:
    trainer.global_steps = step
    await asyncio.to_thread(trainer._save_checkpoint)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("global*"))


async def test_an_adapter_that_another_machine_has_saved_is_an_error(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, **{"actor_rollout_ref.model.lora_rank": 8})
    with pytest.raises(AlgorithmError, match=r"has no lora_train_meta\.json on this machine, .* all nodes share"):
        await saved(trainer, 1)


async def test_a_save_removes_what_a_kill_has_left_of_later_ones_and_not_itself(tmp_path: Path) -> None:
    await saved(trainer_in(tmp_path), 8)
    for step in (10, 11):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    resumed = trainer_in(tmp_path)
    resumed._load_checkpoint()
    assert resumed.global_steps == 8
    await saved(resumed, 9)
    assert left(tmp_path) == ["global_step_9"]
    last = trainer_in(tmp_path)
    last._load_checkpoint()
    assert last.actor_rollout_wg.loaded == ["global_step_9"]


async def test_a_critic_that_there_is_not_has_no_say_in_how_many_stay(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, **{"trainer.max_actor_ckpt_to_keep": 3, "trainer.max_critic_ckpt_to_keep": 1})
    for step in (1, 2, 3, 4):
        await saved(trainer, step)
    assert left(tmp_path) == [f"global_step_{step}" for step in (2, 3, 4)]


async def test_a_run_that_was_killed_while_a_checkpoint_was_named_goes_on_from_it(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    for step in (1, 2):
        await saved(trainer, step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("")
    resumed = trainer_in(tmp_path)
    resumed._load_checkpoint()
    assert (resumed.global_steps, resumed.actor_rollout_wg.loaded) == (2, ["global_step_2"])


class Servers:
    """Remembers when they are given weights, which wakes them."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    def update_weights(self, step: int) -> None:
        self.happened.append("wake")

    async def resume(self, step: int) -> None: ...


@pytest.mark.parametrize(
    ("step", "test_freq", "expected"), [(5, 4, ["wake"]), (6, 4, ["save", "wake"]), (4, 4, ["save", "wake"])]
)
async def test_the_last_step_of_the_last_epoch_and_what_is_validated_is_saved_while_servers_sleep(
    tmp_path: Path, step: int, test_freq: int, expected: list[str]
) -> None:
    happened: list[str] = []
    servers = Servers(happened)
    trainer = trainer_in(
        tmp_path,
        serving=servers,
        **{"trainer.total_epochs": 2, "trainer.save_freq": 100, "trainer.test_freq": test_freq},
    )
    trainer.checkpoint_manager = servers
    trainer.actor_rollout_wg.save_checkpoint = lambda local_path, *_, **__: happened.append("save")
    (tmp_path / f"global_step_{step}").mkdir()
    with trainer.lightning.schedule.saving():
        pass
    trainer.steps_per_epoch, trainer.global_steps, trainer.learned_steps, trainer.timing_raw = 3, step, step, {}
    await asyncio.to_thread(trainer.on_step_end)
    trainer.on_train_end()
    assert happened == expected


class Measures(Saves):
    """Ends the training when it is to measure the model."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def validate(self, step: int) -> dict[str, float]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "exit_code"), [(Enough("the budget is used up"), 0), (AlgorithmError("it broke"), 1)]
)
async def test_trackers_are_closed_however_a_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    finished: list[tuple[Any, int]] = []
    monkeypatch.setattr("verl.utils.tracking.Tracking.finish", lambda it, code=0: finished.append((it, code)))
    logged = {"trainer.val_before_train": True, "trainer.logger": ["console"]}
    trainer = trainer_in(tmp_path, outcome=Measures(error), **logged)
    trainer.global_steps = 0
    with pytest.raises(type(error), match=str(error)):
        await asyncio.to_thread(trainer.fit, None)
    assert (trainer.logger, exit_code) in finished


async def test_groups_are_left_out_by_what_is_learned_of_them(tmp_path: Path) -> None:
    buffer = trainer_in(tmp_path, **{"algorithm.filter_groups.enable": True}).replay_buffer
    rows: dict[str, Any] = {"1-0_0_0": {"only_reward": 1.0}, "1-1_0_0": {"only_reward": None}}
    buffer.partitions["train"] = rows
    buffer.finished_keys["train"] = {"1-0", "1-1"}
    assert buffer._dapo_filtered_keys("train") == ({"1-0"}, {1.0: 1})
    assert buffer._dapo_filtered_keys("val") == (set(), {})


async def test_a_critic_whose_workers_are_grouped_otherwise_has_its_own_share_of_rows(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, **{"algorithm.adv_estimator": "gae"})
    trainer.critic_wg = Models(n_workers=4)
    trainer._sampled = [f"u_{rollout}_0" for rollout in range(5)]
    assert trainer._get_required_batch_multiple(2) == 8
    rows = [*trainer._sampled, "pad_0_0", "pad_1_0", "pad_2_0"]
    batch = tq.KVBatchMeta(keys=rows, tags=[{"seq_len": length} for length in (50, 40, 30, 20, 10, 1, 1, 1)])
    for model, group in enumerate((trainer.actor_rollout_wg, trainer.critic_wg)):
        trainer._sized(group.update_actor, model)(batch)
    ((of_actor, _),), ((of_critic, extra),) = trainer.actor_rollout_wg.updates, trainer.critic_wg.updates
    assert of_actor == rows, "the batch is in the actor's order already"
    assert sorted(of_critic) == sorted(rows)
    assert all(any(key in trainer._sampled for key in of_critic[begin : begin + 2]) for begin in range(0, 8, 2))
    assert extra["mini_batch_size"] % 4 == 0


@pytest.mark.slow
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


def test_a_class_goes_before_verl_s_trainer_of_any_mode_and_a_whole_trainer_is_of_one() -> None:
    class Mine: ...

    class Whole(AgentLightningTrainer): ...

    for mode in ("sync", "colocate_async", "separate_async"):
        made = make_trainer_class(mode, Mine)
        assert made.__mro__[1] is Mine
        assert issubclass(made, LightningMixin)
    assert make_trainer_class("sync", Whole) is Whole
    with pytest.raises(ConfigError, match=r"for trainer\.v1\.trainer_mode=colocate_async it has to be a plain class"):
        make_trainer_class("colocate_async", Whole)
