"""verl's trainer, with rollouts from the store and advantages for whole rollouts.

verl promises nothing of what is used here and in `queue`, so another version of it means reading both again. They were
read against verl 0.9.1 and TransferQueue 0.1.11. Also to be read: the file of its defaults in `config`, the forms of
its checkpoints in `lora`, `checkpoints` and `rules.servable_folder`, what its servers answer in `engine` and `tools`,
its pools in `cluster`, and what its workers find by name in `cpu`, `hf` and `workers`.
"""

import asyncio
import copy
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import ray
import torch
import transfer_queue as tq
from hydra.errors import InstantiationException
from lightning_tokens.learning.mini_batches import MiniBatches, make_mini_batches
from lightning_tokens.learning.steps import step_advantages
from omegaconf import DictConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_policy_loss_fn
from verl.trainer.ppo.utils import Role, need_critic, need_reference_policy
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.utils.config import validate_config
from verl.utils.debug import marked_timer
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance
from verl.utils.tensordict_utils import assign_non_tensor_stack
from verl.utils.tracking import Tracking
from verl.workers.rollout.replica import RolloutReplicaRegistry

from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean, load_object
from lightning_verl.bridge import Enough
from lightning_verl.checkpoints import note_reward, remove_older, repair_tracker
from lightning_verl.config import WORKERS
from lightning_verl.lora import write_adapter
from lightning_verl.queue import StoredRows, filter_by_lessons, write_fields
from lightning_verl.rules import ADAPTER, servable_folder

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _Base
else:
    _Base = object

_DRAIN_SECONDS = 30.0
"""How long calls may go on that nobody's rollout waits for, before the servers sleep."""

trainer_base.tqdm = partial(trainer_base.tqdm, disable=True)  # the run shows its own progress

_POLL_SECONDS = 2.0
"""How often verl looks for groups that have ended, where it is not notified."""

_PACKAGES = ("clearml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
"""Trackers of verl's that are packages of these names."""

_LEARNED_FROM = [
    "response_mask",
    "answers",
    "rm_scores",
    "token_level_rewards",
    "values",
    "advantages",
    "returns",
    "rollout_is_weights",
    "rollout_log_probs",
    "old_log_probs",
]


def check_with_verl(config: DictConfig) -> None:
    """Have verl check its configuration; it needs no Ray for that.

    Raises:
        ConfigError: With what verl says, such as which sizes do not divide each other.
    """
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        _check_name("algorithm.adv_estimator", config.algorithm.adv_estimator, ADV_ESTIMATOR_REGISTRY)
        get_trainer_cls(config.trainer.v1.trainer_mode)
        model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
        if model.external_lib == WORKERS:  # another library may register more, in the workers
            get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
            _check_name("actor_rollout_ref.rollout.name", rollout.name, {*RolloutReplicaRegistry._registry, "hf"})
        loggers = config.trainer.logger
        for name in [loggers] if isinstance(loggers, str) else loggers:
            _check_name("trainer.logger", name, Tracking.supported_backend)
            if name in _PACKAGES and find_spec(name) is None:
                raise ValueError(f"trainer.logger has {name!r}, which is not installed; pip install {name}")
    except (AssertionError, ValueError, InstantiationException) as exc:
        raise ConfigError(f"verl refuses its configuration: {exc}") from exc


def _check_name(key: str, name: str, known: Iterable[str]) -> None:
    names = sorted(known)
    if name not in names:
        raise ValueError(f"{key} is {name!r}; there are: {', '.join(names)}{did_you_mean(name, names)}")


RAY_ENDS = threading.Event()
"""Set when the training of this process is over: whoever calls Ray while it ends, ends the process."""


class CancelsCalls:
    """Goes before verl's client, which keeps the handles of its calls to itself: cancelled, it stops waiting, no more.

    The actor's coroutine is cancelled; so vLLM's engine aborts the request (`AsyncLLM.generate`), and ours does. By its
    id it cannot be: vLLM 0.24 gives requests other ids, which verl's `abort_request` does not look for.
    """

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if RAY_ENDS.is_set():  # Ray would start again, all by itself
            raise RuntimeError("the training has ended, and with it the model")
        name, server = await super()._acquire_server(request_id, **extra)  # type: ignore[misc]
        return name, _Server(server)

    def _release_server(self, *args: Any, **named: Any) -> None:
        if not RAY_ENDS.is_set():
            super()._release_server(*args, **named)  # type: ignore[misc]


class _Server:
    """The actor of a server, as far as verl's client calls it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.generate = self

    async def remote(self, **arguments: Any) -> Any:
        call = self._actor.generate.remote(**arguments)
        try:
            return await call
        except asyncio.CancelledError:
            if not RAY_ENDS.is_set():
                ray.cancel(call)
            raise
        finally:
            del call  # a traceback would keep it for longer than Ray lives


class LightningMixin(_Base):  # type: ignore[misc]
    """What this package changes in any of verl's trainers.

    Args:
        config: verl's.
        lightning: What it works with.
    """

    global_steps: int

    def __init__(self, config: DictConfig, lightning: Any) -> None:
        self.lightning = lightning
        self._is_training = False
        self._fetched = (0, 0)
        self._sampled: Sequence[str] = ()
        self._mini_batches: MiniBatches
        self._n_critic_workers = 1
        self._n_rows = 0
        self.learned_steps = 0
        """How many steps the policy has learned from."""
        self._saved_step = 0
        self._loader_state: Mapping[str, Any] = {}
        self._is_async = config.trainer.v1.trainer_mode != "sync"
        super().__init__(config=config)

    def workers(self) -> list[Any]:
        """Return the actors of Ray that it has started so far and knows of."""
        groups = [getattr(self, name, None) for name in ("actor_rollout_wg", "critic_wg", "ref_policy_wg")]
        managers = self._rollout_server_managers()
        replicas = [replica for manager in managers for replica in manager.get_replicas()]
        rewards = getattr(self, "reward_loop_manager", None)
        return [
            *(worker for group in groups if group is not None for worker in group.workers),
            *(server for replica in replicas for server in replica.servers),
            *(manager.global_load_balancer for manager in managers),
            *(rewards.reward_loop_workers if rewards is not None else ()),
        ]

    def get_llm_client(self) -> Any:
        """Return verl's client, with which a call that is cancelled ends at the server, too."""
        client = super().get_llm_client()
        client.__class__ = type(f"Cancelling{type(client).__name__}", (CancelsCalls, type(client)), {})
        return client

    def fit(self, agent_loop_manager: Any) -> None:
        """Train; however it ends, the trackers that `trainer.logger` names are closed, so that they have everything."""
        exit_code = 1
        try:
            super().fit(agent_loop_manager)
            exit_code = 0
        except Enough:
            exit_code = 0
            raise
        finally:
            if (tracking := getattr(self, "logger", None)) is not None:
                tracking.finish(exit_code)

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer._wait_for_next_poll = self._wait_for_groups  # rather than sleeping
        if self.lightning.manager.options.advantage == "rollout":  # else rows are the samples, as verl has it
            filter_by_lessons(buffer)
        return buffer

    def _wait_for_groups(self, partition_id: str, last_debug_time: float) -> float:
        self.lightning.bridge.wait(_POLL_SECONDS)
        if self.lightning.manager.ending.is_asked:
            raise Enough(f"step {self.global_steps} is not to be learned from")
        return last_debug_time

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        from lightning_verl.workers import CpuActorRolloutRefWorker, LightningTrainingWorker

        for role in self.role_worker_mapping:
            if role == Role.Critic:
                self.role_worker_mapping[role] = ray.remote(LightningTrainingWorker)
            elif self.config.trainer.device == "cpu":
                self.role_worker_mapping[role] = ray.remote(CpuActorRolloutRefWorker)

    # Which groups

    def _fetch_one_gen_batch(self) -> Any:
        """Name the groups by when they are asked for: one that is asked for again, after a kill, has the same name."""
        batch = super()._fetch_one_gen_batch()
        step, count = self._fetched
        first = count if step == self.global_steps else 0
        self._fetched = (self.global_steps, first + len(batch))
        assign_non_tensor_stack(batch, "uid", [f"{self.global_steps}-{first + place}" for place in range(len(batch))])
        return batch

    # Checkpoints

    def _load_checkpoint(self) -> None:
        repair_tracker(Path(self.config.trainer.default_local_dir))
        super()._load_checkpoint()
        self.learned_steps = self._saved_step = self.global_steps
        if self._is_async:  # groups of the next step were asked for before an end in its middle
            step, held = self.global_steps + 1, tq.kv_list("train") or {}
            self._fetched = (step, _first_free(step, held.get("train", {})))

    def _save_checkpoint(self) -> None:
        trainer, model = self.config.trainer, self.config.actor_rollout_ref.model
        with self.lightning.schedule.saving():
            super()._save_checkpoint()
            actor = Path(trainer.default_local_dir, f"global_step_{self.global_steps}", "actor")
            if servable_folder(self.config) == f"actor/{ADAPTER}":
                write_adapter(actor, actor / ADAPTER, base=str(model.path), start=model.lora_adapter_path)
        self._saved_step = self.global_steps
        self.lightning.bridge.call(self.lightning.save(self.global_steps))
        if self.lightning.settings.keeps_best:
            remove_older(Path(trainer.default_local_dir), newest=self.global_steps)

    @property
    def has_more_to_keep(self) -> bool:
        """Whether a step was learned from that is not saved yet, or not reported. May be read in any thread."""
        return self._is_unsaved or (self._is_training and self.learned_steps == self.global_steps)

    def keep_learned(self) -> None:
        """Save what was learned and is not saved yet, in the middle of a step that does not come to its end."""
        if not self._is_unsaved:
            return
        self.checkpoint_manager.abort_replicas()
        self.checkpoint_manager.sleep_replicas()  # as whenever verl saves: they leave room for it
        if not self._is_async:  # tasks that were fetched since are not learned from, and no queue keeps them
            self.train_dataloader = _Fetched(self._loader_state)
        self._save_learned()

    @property
    def _is_unsaved(self) -> bool:
        return bool(self.config.trainer.save_freq > 0 and self._saved_step != self.learned_steps)

    def _save_learned(self) -> None:
        after, self.global_steps = self.global_steps, self.learned_steps
        self._save_checkpoint()
        self.global_steps = after

    # When weights change

    def on_init_end(self) -> None:
        super().on_init_end()
        self.actor_rollout_wg.update_actor = self._sized(self.actor_rollout_wg.update_actor, 0)
        if self.use_critic:
            self.critic_wg.train_mini_batch = self._sized(self.critic_wg.train_mini_batch, 1)
        self.lightning.bridge.call(self.lightning.serving.resume(self.global_steps))

    def on_train_begin(self) -> None:
        self._is_training = True
        self.lightning.schedule.begin()
        super().on_train_begin()

    def on_step_begin(self) -> None:
        if self.lightning.manager.ending.is_asked:
            raise Enough(f"step {self.global_steps} is not to be learned from")
        super().on_step_begin()

    def on_sample_end(self) -> None:
        # The rollouts of a step have ended then, or verl interrupts their calls, which go on with the new weights.
        self.lightning.bridge.call(
            self.lightning.serving.pause(drain_seconds=None if self._is_async else _DRAIN_SECONDS)
        )
        super().on_sample_end()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> "KVBatchMeta":
        batch = super().step(metrics, timing_raw)
        self.learned_steps = self.global_steps
        return batch

    def on_step_end(self) -> None:
        self._loader_state = copy.deepcopy(self.train_dataloader.state_dict())
        # verl saves the last step by itself where `total_training_steps` ends the run, and not where the epochs do.
        is_last = self.global_steps // self.steps_per_epoch >= self.config.trainer.total_epochs
        frequency = self.config.trainer.test_freq
        is_candidate = self.lightning.settings.keeps_best and frequency > 0 and self.global_steps % frequency == 0
        is_due = self.lightning.schedule.is_due() or is_last or is_candidate
        if is_due and self._is_unsaved:  # before the servers wake, and take their memory
            with marked_timer("save_checkpoint", self.timing_raw, color="green"):
                self._save_checkpoint()
        super().on_step_end()
        self.lightning.bridge.call(self.lightning.serving.resume(self.global_steps))

    # Which rows the optimiser sees together

    def _balance_batch(self, batch: "KVBatchMeta", metrics: dict[str, Any], **more: Any) -> "KVBatchMeta":
        """Make mini-batches of rollouts; verl's are of rows, however many these are, and its last ones of padding."""
        self._sampled = batch.keys
        batch = super()._balance_batch(batch, metrics, **more)  # fills it up, see `_get_required_batch_multiple`
        lengths = [tag["seq_len"] for tag in batch.tags]
        order = self._order(batch, self._mini_batches.n_workers)
        batch.reorder(order)
        values = log_seqlen_unbalance(lengths, np.array_split(order, self._mini_batches.n_workers), "global_seqlen")
        metrics.update({name: value for name, value in values.items() if "balanced" in name})
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Say how many rows there are to be."""
        n_groups = self.config.data.train_batch_size
        sizes = [self.config.actor_rollout_ref.actor.ppo_mini_batch_size]
        if self.use_critic:
            sizes.append(self.config.critic.ppo_mini_batch_size)
        # Workers may be grouped otherwise for each model, such as by its ulysses_sequence_parallel_size.
        self._n_critic_workers = _n_workers(self.critic_wg, "train") if self.use_critic else dp_size
        has_ref = self.use_reference_policy and not self.ref_in_actor
        n_ref_workers = _n_workers(self.ref_policy_wg, "ref") if has_ref else dp_size
        # Micro-batches of a fixed size divide what the config calls a mini-batch.
        is_fixed = not self.config.actor_rollout_ref.actor.use_dynamic_bsz
        self._mini_batches = make_mini_batches(
            self._sampled,
            updates=[max(1, n_groups // size) for size in sizes],
            n_workers=dp_size,
            multiple_of=math.lcm(
                self._n_critic_workers,
                n_ref_workers,
                math.lcm(*sizes) * self.config.actor_rollout_ref.rollout.n if is_fixed else 1,
            ),
        )
        return self._mini_batches.n_rows

    def _order(self, batch: "KVBatchMeta", n_workers: int) -> list[int]:
        lengths = [tag["seq_len"] for tag in batch.tags]
        costs = calculate_workload(torch.tensor(lengths)).tolist()
        return self._mini_batches.order(batch.keys, costs, n_workers=n_workers)

    def _sized(self, update: Callable[["KVBatchMeta"], Any], model: int) -> Callable[["KVBatchMeta"], Any]:
        def sized(batch: "KVBatchMeta") -> Any:
            if model == 1 and self._n_critic_workers != self._mini_batches.n_workers:
                batch = copy.copy(batch)  # the actor's order stays
                batch.reorder(self._order(batch, self._n_critic_workers))
            batch.extra_info["mini_batch_size"] = self._mini_batches.rows_for_each(model)
            # What a mean over rows is taken over: not padding, nor what a correction rejected as a whole.
            batch.extra_info["global_batch_size"] = max(self._n_rows, 1) / self._mini_batches.updates[model]
            return update(batch)

        return sized

    # What is learned

    def _compute_advantage(self, batch: "KVBatchMeta", metrics: dict[str, Any]) -> "KVBatchMeta":
        batch = super()._compute_advantage(batch, metrics)
        options = self.lightning.manager.options
        rows = StoredRows(batch, _LEARNED_FROM)
        masks = rows.numbers("response_mask") or []
        scores, rewards = rows.numbers("rm_scores"), rows.numbers("token_level_rewards")
        has_penalties = self.config.algorithm.use_kl_in_reward and scores is not None and rewards is not None
        result = step_advantages(
            keys=batch.keys,
            masks=masks,
            answers=rows.objects("answers"),
            options=options,
            values=rows.numbers("values"),
            penalties=_difference(rewards or (), scores or ()) if has_penalties else None,
            gamma=self.config.algorithm.gamma,
            lam=self.config.algorithm.lam,
        )
        self._n_rows = result.n_rows
        metrics.update(_difference_of_logprobs(rows, masks))
        if options.advantage == "row" and options.loss == "verl":
            return batch
        advantages, returns = (rows.numbers("advantages") or [], rows.numbers("returns") or [])
        if options.advantage == "rollout":
            advantages, returns = result.advantages, result.returns
        fields = {"advantages": advantages, "returns": returns}
        if options.loss == "rollout":
            # verl's losses multiply by these, for corrections of the rollout's distribution.
            corrections = rows.numbers("rollout_is_weights") or [np.ones(len(mask)) for mask in masks]
            fields["rollout_is_weights"] = [
                weight * row for row, weight in zip(corrections, result.weights, strict=True)
            ]
        return write_fields(batch, fields)

    # What is measured

    def _validate(self) -> dict[str, float]:
        try:
            metrics: dict[str, float] = self.lightning.bridge.call(self.lightning.validate(self.global_steps))
        except Enough:
            if self._is_training:  # the step's other metrics are reported before the end
                return {}
            raise
        if not self._is_training:  # later, they are among those of the step
            self.lightning.report(metrics, self.global_steps)
        note_reward(Path(self.config.trainer.default_local_dir), step=self.global_steps, reward=metrics["val/reward"])
        return metrics

    def _compute_metrics(
        self, batch: "KVBatchMeta", metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        entries = (tq.kv_list(batch.partition_id) or {}).get(batch.partition_id, {})
        metrics.update(self.lightning.bridge.call(self.lightning.manager.take_metrics(batch.keys, waiting=entries)))
        self.lightning.report(metrics, global_steps)


def make_trainer_class(mode: str, own: type | str | None = None) -> type[LightningMixin]:
    """Return verl's trainer of a mode with what is changed here.

    Args:
        mode: `trainer.v1.trainer_mode`.
        own: What goes before it: a class, or its import path; one that is such a trainer itself is taken as it is.

    Raises:
        ConfigError: When it is not a class, or a trainer of another mode.
    """
    base = get_trainer_cls(mode)
    whole: type[LightningMixin] = type(f"Lightning{base.__name__}", (LightningMixin, base), {})
    if own is None:
        return whole
    trainer_class: Any = load_object(own) if isinstance(own, str) else own
    if isinstance(trainer_class, type) and not issubclass(trainer_class, LightningMixin):
        return type(trainer_class.__name__, (trainer_class, whole), {})
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, base)):
        raise ConfigError(
            f"trainer_cls is {own!r}; for trainer.v1.trainer_mode={mode} it has to be a plain class, which goes before "
            f"verl's trainer, or a subclass of LightningMixin and {base.__name__}"
        )
    return trainer_class


AgentLightningTrainer = make_trainer_class("sync")
"""agentlightning 0.3's name of the trainer; `VERL` makes one of the mode that the config names."""


class _Fetched(NamedTuple):
    """Which tasks were fetched by the end of a step: what a checkpoint keeps of the loader."""

    state: Mapping[str, Any]

    def state_dict(self) -> Mapping[str, Any]:
        return self.state


def _first_free(step: int, keys: Iterable[str]) -> int:
    """Return the first number that no group of a step has, among the keys of groups and of their rows."""
    named = (re.fullmatch(rf"{step}-(\d+)", key.split("_", 1)[0]) for key in keys)
    return 1 + max((int(name[1]) for name in named if name), default=-1)


def _n_workers(group: Any, mesh: str) -> int:
    """Return among how many workers of a group verl shares rows."""
    if mesh not in group._dispatch_info:
        group._dispatch_info[mesh] = group._query_dispatch_info(mesh)
    return int(max(group._dispatch_info[mesh])) + 1


def _difference_of_logprobs(rows: StoredRows, masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Say by how much the actor's log-probabilities of the sampled tokens differ from those that they were drawn with.

    verl says it of probabilities, which are small where a model is unsure of every token.
    """
    sampled, actors = rows.numbers("rollout_log_probs"), rows.numbers("old_log_probs")
    if sampled is None or actors is None:
        return {}
    diffs = np.concatenate([np.abs(a - b)[mask > 0] for a, b, mask in zip(sampled, actors, masks, strict=True)])
    return {"training/rollout_logprobs_diff_mean": float(diffs.mean())} if len(diffs) else {}


def _difference(rewards: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [a - b for a, b in zip(rewards, scores, strict=True)]
