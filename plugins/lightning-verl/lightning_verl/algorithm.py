"""The algorithm `verl`, and the presets of it."""

import asyncio
import hashlib
import logging
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import OmegaConf

from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.continued import continued
from lightning_core.errors import ConfigError
from lightning_core.types import Dataset, NamedResources, samples_of
from lightning_verl.accelerators import check_accelerator
from lightning_verl.bridge import Bridge
from lightning_verl.config import Settings, check_settings, load_settings
from lightning_verl.learning import as_trajectory_adapter
from lightning_verl.manager import RolloutManager
from lightning_verl.serving import RESOURCE, Serving
from lightning_verl.training import Plan, Training
from lightning_verl.versions import check_versions

logger = logging.getLogger(__name__)


class VERL(Algorithm):
    """Trains the weights of the model that an agent calls, by reinforcement learning with verl.

    The agent is given the model as the resource `main_llm`. Its rollouts are recorded by the model proxy: the
    trainer's, or one that this algorithm starts on this machine. What is learned from them is said under
    `agentlightning` in the config, everything else is verl's own.

    Where the store is durable, a run that was killed goes on from its last checkpoint, and rollouts that had ended are
    not run again.

    Args:
        config: verl's options as in agentlightning 0.3, a YAML file of them, or a list like
            `["actor_rollout_ref.rollout.n=8", ...]`. What is not in it is as verl has it.
        preset: `grpo`, `ppo` or `rloo`: sets what belongs to it, where the config does not say otherwise.

    Raises:
        ConfigError: Names every key that there is not and every value that does not fit, with the nearest right key.
    """

    _preset: ClassVar[Literal["grpo", "ppo", "rloo"] | None] = None

    def __init__(
        self,
        config: Mapping[str, Any] | Sequence[str] | str | Path | None = None,
        *,
        preset: Literal["grpo", "ppo", "rloo"] | None = None,
    ) -> None:
        if preset is not None and self._preset is not None and preset != self._preset:
            raise ConfigError(f"preset is {preset!r}, and {type(self).__name__} is {self._preset!r}; say it once")
        self.settings: Settings = load_settings(config, preset=preset or self._preset)

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Train.

        Raises:
            ConfigError: When the machine, an installed version, a path or a size does not fit; before anything starts.
            NoRewards: When no rollout of a whole step gave a reward; says the first cause.
            AlgorithmError: When nothing can be learned from a whole step, although there are rewards.
        """
        settings, store = self.settings, self.get_store()
        train, val = samples_of(train_dataset or ()), samples_of(val_dataset or ())
        self._check(len(train), None if val_dataset is None else len(val))
        work = {"config": _digest(settings), "train": len(train), "val": len(val)}
        async with continued(store, "verl", of=work) as key:
            bridge = Bridge(asyncio.get_running_loop())
            serving = Serving(
                store,
                proxy=self.get_llm_proxy(),
                backend=settings.own.backend,
                key=key,
                resources=_others(self.get_initial_resources()),
                budget=self.get_budget(),
            )
            rollout = settings.verl.actor_rollout_ref.rollout
            manager = RolloutManager(
                store,
                bridge=bridge,
                serving=serving,
                tasks={"train": train, "val": val},
                group_size={"train": rollout.n, "val": rollout.val_kwargs.n},
                options=settings.learning,
                key=key,
                config=self.get_rollout_config(),
                adapter=self._adapter,
                is_repeatable=settings.verl.trainer.v1.trainer_mode == "sync",
            )
            plan = Plan(
                verl=OmegaConf.create(settings.verl),
                options=settings.learning,
                n_train=len(train),
                n_val=len(val),
                checkpoints=self._checkpoints(key),
            )
            await manager.cancel_left()
            training = Training(plan, bridge=bridge, manager=manager, serving=serving, report=self._tell)
            try:
                await training.run()
            finally:
                bridge.stop()
                await manager.aclose()
                await serving.stop()

    def _check(self, n_train: int, n_val: int | None) -> None:
        """Refuse what cannot work, before torch is imported and Ray is started."""
        settings = self.settings
        check_versions()
        ray = settings.verl.ray_kwargs.get("ray_init") or {}
        is_elsewhere = bool(ray.get("address") or os.environ.get("RAY_ADDRESS") or settings.verl.trainer.nnodes > 1)
        check_accelerator(settings.device, is_elsewhere=is_elsewhere)
        check_settings(settings, n_train=n_train, n_val=n_val)
        try:
            as_trajectory_adapter(self._adapter)
        except TypeError as exc:
            raise ConfigError(str(exc)) from exc

    def _checkpoints(self, key: str) -> Path:
        """Return where this work keeps its checkpoints: a folder of its own, so that no other run continues it."""
        recording = None if self._trainer is None else self.get_trainer().recording
        if recording is not None:
            return recording.folder.path / "checkpoints"
        return Path(str(self.settings.verl.trainer.default_local_dir)).absolute() / key

    def _tell(self, metrics: Mapping[str, Any], step: int) -> None:
        """Report what a step has measured. In the trainer's thread."""
        numbers_only = {name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real)}
        self.report(numbers_only, step=step or None)


class GRPO(VERL):
    """`VERL` with group-relative advantages, and no critic."""

    _preset = "grpo"


class PPO(VERL):
    """`VERL` with a critic and generalised advantage estimation."""

    _preset = "ppo"


class RLOO(VERL):
    """`VERL` with the mean of the other rollouts of a group as the baseline."""

    _preset = "rloo"


def _others(resources: NamedResources | None) -> NamedResources:
    return {name: resource for name, resource in (resources or {}).items() if name != RESOURCE}


def _digest(settings: Settings) -> str:
    """Tell configs apart in a few characters: another one is other work."""
    text = OmegaConf.to_yaml(settings.verl, sort_keys=True) + repr(settings.learning)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
