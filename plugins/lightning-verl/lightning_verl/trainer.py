"""verl's trainer, with rollouts from the store and advantages for whole rollouts."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import get_trainer_cls

from lightning_verl.bridge import Bridge
from lightning_verl.learning import LearningOptions, step_advantages
from lightning_verl.manager import RolloutManager
from lightning_verl.serving import Serving

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _Base
else:
    _Base = object

_POLL_SECONDS = 2.0
"""How often verl looks for groups that have ended, where nobody tells it."""

_LEARNED_FROM = [
    "response_mask",
    "answers",
    "rm_scores",
    "token_level_rewards",
    "values",
    "advantages",
    "returns",
    "rollout_is_weights",
]

Report = Callable[[Mapping[str, float], int], None]


class LightningMixin(_Base):  # type: ignore[misc]
    """What this package changes in any of verl's trainers.

    Args:
        config: verl's.
        bridge: To the event loop.
        manager: Runs rollouts.
        serving: Serves the policy.
        options: What is learned, and how.
        report: Is told what each step has measured.
    """

    def __init__(
        self,
        config: DictConfig,
        *,
        bridge: Bridge,
        manager: RolloutManager,
        serving: Serving,
        options: LearningOptions,
        report: Report,
    ) -> None:
        self._bridge = bridge
        self._manager = manager
        self._serving = serving
        self._options = options
        self._report = report
        self._is_training = False
        super().__init__(config=config)

    def workers(self) -> list[Any]:
        """Return the actors of Ray that it has started so far and knows of."""
        groups = [getattr(self, name, None) for name in ("actor_rollout_wg", "critic_wg", "ref_policy_wg")]
        found = [worker for group in groups if group is not None for worker in group.workers]
        servers = getattr(self, "llm_server_manager", None)
        return [*found, *(getattr(servers, "server_handles", None) or ())]

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer._wait_for_next_poll = self._wait_for_groups  # rather than sleeping
        return buffer

    def _wait_for_groups(self, partition_id: str, last_debug_time: float) -> float:
        self._bridge.wait(_POLL_SECONDS)
        return last_debug_time

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.config.trainer.device == "cpu":
            from lightning_verl.cpu.workers import CpuActorRolloutRefWorker, CpuTrainingWorker

            for role in self.role_worker_mapping:
                worker = CpuTrainingWorker if role == Role.Critic else CpuActorRolloutRefWorker
                self.role_worker_mapping[role] = ray.remote(worker)

    # When weights change

    def on_init_end(self) -> None:
        super().on_init_end()
        self._bridge.call(self._serving.resume(self.global_steps))

    def on_train_begin(self) -> None:
        self._is_training = True
        super().on_train_begin()

    def on_sample_end(self) -> None:
        self._bridge.call(self._serving.pause())
        super().on_sample_end()

    def on_step_end(self) -> None:
        super().on_step_end()
        self._bridge.call(self._serving.resume(self.global_steps))

    # What is learned

    def _compute_advantage(self, batch: "KVBatchMeta", metrics: dict[str, Any]) -> "KVBatchMeta":
        batch = super()._compute_advantage(batch, metrics)
        if self._options.advantage == "row" and self._options.loss == "verl":
            return batch
        rows = _Rows(tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=_LEARNED_FROM))
        masks = [[int(each) for each in mask] for mask in rows.numbers("response_mask") or ()]
        scores, rewards = rows.numbers("rm_scores"), rows.numbers("token_level_rewards")
        has_penalties = self.config.algorithm.use_kl_in_reward and scores is not None and rewards is not None
        result = step_advantages(
            keys=batch.keys,
            masks=masks,
            answers=rows.objects("answers"),
            options=self._options,
            values=rows.numbers("values"),
            penalties=_difference(rewards or (), scores or ()) if has_penalties else None,
            gamma=self.config.algorithm.gamma,
            lam=self.config.algorithm.lam,
        )
        advantages, returns = rows.numbers("advantages") or [], rows.numbers("returns") or []
        if self._options.advantage == "rollout":
            advantages, returns = result.advantages, result.returns
        fields = {"returns": returns}
        if self._options.loss == "rollout" and self._options.weights_in == "loss":
            # verl's losses multiply by these, for corrections of the rollout's distribution.
            corrections = rows.numbers("rollout_is_weights") or [[1.0] * len(mask) for mask in masks]
            fields["rollout_is_weights"] = _scaled(corrections, result.weights)
        elif self._options.loss == "rollout":
            advantages = _scaled(advantages, result.weights)
        fields["advantages"] = advantages
        nested = {name: _nested(values) for name, values in fields.items()}
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(batch.keys))
        )

    # What is measured

    def _validate(self) -> dict[str, float]:
        metrics = self._manager.validate(self.global_steps)
        if not self._is_training:  # later, they are among those of the step
            self._report(metrics, self.global_steps)
        return metrics

    def _compute_metrics(
        self, batch: "KVBatchMeta", metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        metrics.update(self._manager.take_metrics())
        self._report(metrics, global_steps)


def make_trainer_class(mode: str) -> type[LightningMixin]:
    """Return verl's trainer of a mode with what is changed here."""
    base = get_trainer_cls(mode)
    return type(f"Lightning{base.__name__}", (LightningMixin, base), {})


AgentLightningTrainer = make_trainer_class("sync")
"""agentlightning 0.3's name of the trainer; `VERL` makes one of the mode that the config names."""


class _Rows:
    """Fields of TransferQueue as plain lists, row by row."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def numbers(self, name: str) -> list[list[float]] | None:
        """Return a field of numbers; None where there is none."""
        if name not in self._data.keys():  # noqa: SIM118 - a TensorDict is no mapping
            return None
        return [row.tolist() for row in self._data[name].unbind()]

    def objects(self, name: str) -> list[Any]:
        """Return a field of any values."""
        return list(self._data[name])  # a list, a stack or an array, as the queue's storage has it


def _difference(rewards: Sequence[Sequence[float]], scores: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(rewards, scores, strict=True)]


def _scaled(values: Sequence[Sequence[float]], weights: Sequence[float]) -> list[list[float]]:
    return [[weight * value for value in row] for row, weight in zip(values, weights, strict=True)]


def _nested(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(
        [torch.tensor(row, dtype=torch.float32) for row in values], layout=torch.jagged
    )
