"""What verl's own trainer saves and goes on from, with what is changed in it. Models are folders without weights."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
import transfer_queue as tq
from lightning_verl.bridge import Enough
from toy_trainer import Models, left, saved, trainer_in

from lightning_core.errors import AlgorithmError, ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.queue import TaskNumbers
    from lightning_verl.trainer import AgentLightningTrainer, LightningMixin, make_trainer_class

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),  # of verl
]


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
    options = {"trainer.total_epochs": 2, "trainer.save_freq": 100, "trainer.test_freq": test_freq}
    trainer = trainer_in(tmp_path, serving=servers, **options)
    trainer.checkpoint_manager = servers
    trainer.actor_rollout_wg.save_checkpoint = lambda local_path, *_, **__: happened.append("save")
    (tmp_path / f"global_step_{step}").mkdir()
    with trainer.lightning.schedule.saving():
        pass
    trainer.steps_per_epoch, trainer.global_steps, trainer.learned_steps, trainer.timing_raw = 3, step, step, {}
    await asyncio.to_thread(trainer.on_step_end)
    trainer.on_train_end()
    assert happened == expected


@pytest.mark.parametrize(
    ("error", "exit_code"), [(Enough("the budget is used up"), 0), (AlgorithmError("it broke"), 1)]
)
async def test_trackers_are_closed_however_a_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    finished: list[tuple[Any, int]] = []
    monkeypatch.setattr("verl.utils.tracking.Tracking.finish", lambda it, code=0: finished.append((it, code)))

    async def validate(step: int) -> dict[str, float]:
        raise error

    logged = {"trainer.val_before_train": True, "trainer.logger": ["console"]}
    trainer = trainer_in(tmp_path, validate=validate, **logged)
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


def test_a_class_goes_before_verl_s_trainer_of_any_mode_and_a_whole_trainer_is_of_one() -> None:
    class Mine: ...

    class Whole(AgentLightningTrainer): ...

    for mode in ("sync", "colocate_async"):
        made = make_trainer_class(mode, Mine)
        assert made.__mro__[1] is Mine
        assert issubclass(made, LightningMixin)
    assert make_trainer_class("sync", Whole) is Whole
    with pytest.raises(ConfigError, match=r"for trainer\.v1\.trainer_mode=colocate_async it has to be a plain class"):
        make_trainer_class("colocate_async", Whole)


def test_verl_goes_through_as_many_tasks_as_it_is_told() -> None:
    tasks = TaskNumbers("3", tokenizer=None, processor=None, config=None)
    assert [task["index"] for task in tasks] == [0, 1, 2]
    assert len(TaskNumbers("3", max_samples=2)) == 2
    assert len(TaskNumbers("3", max_samples=9)) == 3
    with pytest.raises(IndexError):
        tasks[3]
