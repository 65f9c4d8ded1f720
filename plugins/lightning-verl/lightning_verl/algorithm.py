"""The algorithm `verl`, and the presets of it."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning_tokens.learning.serving import check_parts, checkpoints_of
from packaging.requirements import Requirement

from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.batch import continued
from lightning_core.errors import ConfigError
from lightning_core.registry import load_object
from lightning_core.types import Dataset, samples_of
from lightning_verl.bridge import Bridge
from lightning_verl.config import Settings, check_settings, load_settings
from lightning_verl.manager import RolloutManager
from lightning_verl.serving import Serving
from lightning_verl.training import Training

logger = logging.getLogger(__name__)


class VERL(Algorithm):
    """Trains the weights of the model that an agent calls, by reinforcement learning with verl.

    The agent is given the model as the resource `main_llm`. Its rollouts are recorded by the model proxy: the
    trainer's, or one that this algorithm starts on this machine. What is learned from them is said under
    `agentlightning` in the config, everything else is verl's own.

    The best resources that it reports are those with the newest model that is saved: `main_llm.model` is its folder. A
    `test_dataset` is run with the model as it was given, and with the trained one, before verl's servers end.

    Where the store is durable, a run that was killed goes on from its last checkpoint, and rollouts that had ended are
    not run again.

    Args:
        config: verl's options as in agentlightning 0.3, a YAML file of them, or a list like
            `["actor_rollout_ref.rollout.n=8", ...]`. What is not in it is as verl has it.
        trainer_cls: What goes before verl's trainer: a plain class, or its import path `pkg.mod:Class`, whose methods
            are called instead of the trainer's and call those by `super()`; or a subclass of `AgentLightningTrainer`.
        daemon_cls: A subclass of `RolloutManager`, or its import path: 0.3's daemon is that, here.
        preset: `grpo`, `ppo` or `rloo`: sets what belongs to it, where the config does not say otherwise.

    Raises:
        ConfigError: Names every key that there is not and every value that does not fit, with the nearest right key.
    """

    measures_held_out = True
    end_seconds = 600.0
    _preset: ClassVar[Literal["grpo", "ppo", "rloo"] | None] = None

    def __init__(
        self,
        config: Mapping[str, Any] | Sequence[str] | str | Path | None = None,
        trainer_cls: type | str | None = None,
        daemon_cls: type[RolloutManager] | str | None = None,
        *,
        preset: Literal["grpo", "ppo", "rloo"] | None = None,
    ) -> None:
        if preset is not None and self._preset is not None and preset != self._preset:
            raise ConfigError(f"preset is {preset!r}, and {type(self).__name__} is {self._preset!r}; say it once")
        self.settings: Settings = load_settings(config, preset=preset or self._preset)
        self._trainer_cls = trainer_cls
        self._daemon_cls = daemon_cls

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Train.

        Raises:
            ConfigError: When the machine, an installed version, a path or a size does not fit; before anything starts.
            NoRewards: When no rollout of a whole step gave a reward; says the first cause.
            AlgorithmError: When nothing can be learned from a whole step, although there are rewards.
        """
        settings, store = self.settings, self.get_store()
        train, val = samples_of(train_dataset or ()), samples_of(val_dataset or ())
        test_dataset = self.get_test_dataset()
        test = samples_of(test_dataset or ())
        daemon_cls = _daemon_class(self._daemon_cls)
        self._check(
            n_train=len(train),
            n_val=None if val_dataset is None else len(val),
            n_test=None if test_dataset is None else len(test),
        )
        work = work_of(settings, n_train=len(train), n_val=len(val))
        async with continued(store, "verl", of=work) as key:
            folder = key.rstrip("+")  # what was learned before a failure is not to be learned again
            bridge, budget = Bridge(asyncio.get_running_loop()), self.get_budget()
            serving = Serving(
                store,
                proxy=self.get_llm_proxy(),
                # What goes on from a checkpoint keeps what was measured before it, also where that part failed.
                key=folder if settings.verl.trainer.save_freq > 0 else key,
                resources=self.get_initial_resources(),
                budget=budget,
            )
            rollout = settings.verl.actor_rollout_ref.rollout
            manager = daemon_cls(
                store,
                bridge=bridge,
                serving=serving,
                tasks={"train": train, "val": val, "test": test},
                group_size={"train": rollout.n, "val": rollout.val_kwargs.n, "test": rollout.val_kwargs.n},
                batch_size=settings.batch_size,
                is_sync=settings.verl.trainer.v1.trainer_mode == "sync",
                options=settings.learning,
                key=key,
                config=self.get_rollout_config(),
                adapter=self._adapter,
            )
            training = Training(
                self,
                settings,
                n_samples={"train": len(train), "val": len(val), "test": len(test)},
                checkpoints=checkpoints_of(self, folder, otherwise=Path(str(settings.verl.trainer.default_local_dir))),
                trainer_cls=self._trainer_cls,
                bridge=bridge,
                manager=manager,
                serving=serving,
            )
            await manager.cancel_left()
            try:
                await training.run()
            finally:
                bridge.stop()
                await manager.aclose()
                await serving.stop()

    def _check(self, *, n_train: int, n_val: int | None, n_test: int | None) -> None:
        """Refuse what cannot work, before torch is imported and Ray is started."""
        settings = self.settings
        check_versions()
        ray = settings.verl.ray_kwargs.get("ray_init") or {}
        if not (ray.get("address") or os.environ.get("RAY_ADDRESS") or settings.verl.trainer.nnodes > 1):
            check_engine(str(settings.verl.actor_rollout_ref.rollout.name))
        check_settings(settings, n_train=n_train, n_val=n_val, n_test=n_test)
        check_parts(self, str(settings.verl.actor_rollout_ref.model.path))


class PPO(VERL):
    """`VERL` with a critic and generalised advantage estimation."""

    _preset = "ppo"


def work_of(settings: Settings, *, n_train: int, n_val: int) -> dict[str, Any]:
    """Return what tells a training from another one, as JSON has it: the same is gone on with.

    Args:
        settings: Its config.
        n_train: How many samples it has.
        n_val: How many to validate on.
    """
    return {"config": _digest(settings), "train": n_train, "val": n_val}


def _daemon_class(given: type | str | None) -> type[RolloutManager]:
    manager_class = load_object(given) if isinstance(given, str) else given or RolloutManager
    if not (isinstance(manager_class, type) and issubclass(manager_class, RolloutManager)):
        raise ConfigError(
            f"daemon_cls is {given!r}; it has to be a subclass of lightning_verl.RolloutManager, which runs the "
            "rollouts here"
        )
    return manager_class


def _digest(settings: Settings) -> str:
    """Tell configs apart in a few characters: another one is other work."""
    text = repr(sorted(settings.given.items())) + repr((settings.own, settings.learning))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_versions() -> None:
    """Refuse what is missing, or of a version that this package does not ask of pip. Imports none of it.

    verl's trainer is not a stable API yet, so its versions are those that were tried.

    Raises:
        ConfigError: Names everything that is wrong, and what to install.
    """
    faults = []
    for wanted in map(Requirement, metadata.requires("lightning-verl") or ()):
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{wanted.name} is not installed, {wanted} is needed")
        else:
            if not wanted.specifier.contains(version, prereleases=True):
                faults.append(f"{wanted.name} is {version}, {wanted} is needed")
    if faults:
        raise ConfigError(f"{'; '.join(faults)}. Make the environment as lightning-verl's README says")


def check_engine(engine: str) -> None:
    """Refuse to generate with an engine that is not installed.

    Args:
        engine: Which one generates: `actor_rollout_ref.rollout.name`.

    Raises:
        ConfigError: When it is not there.
    """
    if engine in ("vllm", "sglang") and find_spec(engine) is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name is {engine!r}, which is not installed; to train on this machine's "
            "processor, set agentlightning.device: cpu. For GPUs make the environment as lightning-verl's README says, "
            "or set the name to hf, which is slow"
        )
