"""The algorithm `verl`, and the presets of it."""

import asyncio
import copy
import hashlib
import logging
import numbers
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from lightning_proxy import LLMProxy, RemoteProxy
from omegaconf import OmegaConf

from lightning_core.adapter.trajectory import as_trajectory_adapter
from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.batch import continued
from lightning_core.errors import ConfigError
from lightning_core.registry import load_object
from lightning_core.store import LightningStore
from lightning_core.types import Dataset, NamedResources, samples_of
from lightning_verl.bridge import Bridge
from lightning_verl.checkpoints import Schedule
from lightning_verl.config import Settings, check_settings, load_settings
from lightning_verl.manager import RolloutManager
from lightning_verl.outcome import Outcome, Parts
from lightning_verl.requirements import check_engine, check_versions
from lightning_verl.serving import RESOURCE, Serving
from lightning_verl.training import Training

logger = logging.getLogger(__name__)

_CHECKPOINTS = "verl/checkpoints"
"""Under which the store has the folder of the checkpoints of work that has not succeeded yet."""


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
            folder = await checkpoint_folder(store, key, of=work)
            bridge, budget = Bridge(asyncio.get_running_loop()), self.get_budget()
            serving = Serving(
                store,
                proxy=cast(LLMProxy | None, self.get_llm_proxy()),  # `_check` refuses any other
                # What goes on from a checkpoint keeps what was measured before it, also where that part failed.
                key=folder if settings.verl.trainer.save_freq > 0 else key,
                resources=_others(self.get_initial_resources()),
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
            checkpoints = self._checkpoints(folder)
            outcome = Outcome(
                manager=manager,
                serving=serving,
                start=str(settings.verl.actor_rollout_ref.model.path),
                folder=lambda step: checkpoints / f"global_step_{step}" / settings.weights_folder,
                has_test=bool(test),
                set_start=self.set_initial_resources,
                report=self.report,
            )
            parts = Parts(
                verl=OmegaConf.create(settings.verl),
                n_train=len(train),
                n_val=len(val),
                checkpoints=checkpoints,
                trainer_cls=self._trainer_cls,
                bridge=bridge,
                manager=manager,
                serving=serving,
                outcome=outcome,
                schedule=Schedule(settings.checkpoint_seconds),
                keeps_best=settings.keeps_best,
                report=self._told_once(bridge, f"{folder}/reported", await store.load_state(f"{folder}/reported")),
            )
            await manager.cancel_left()
            try:
                await Training(parts, is_spent=self._is_spent).run()
            finally:
                bridge.stop()
                await manager.aclose()
                await serving.stop()
            await store.save_state(_CHECKPOINTS, None)

    def _is_spent(self) -> bool:
        """Whether the budget has ended the run: a call was refused, or the time is over."""
        budget = self.get_budget()
        return budget is not None and (budget.refused is not None or budget.is_time_over)

    def _check(self, *, n_train: int, n_val: int | None, n_test: int | None) -> None:
        """Refuse what cannot work, before torch is imported and Ray is started."""
        settings = self.settings
        check_versions()
        ray = settings.verl.ray_kwargs.get("ray_init") or {}
        if not (ray.get("address") or os.environ.get("RAY_ADDRESS") or settings.verl.trainer.nnodes > 1):
            check_engine(str(settings.verl.actor_rollout_ref.rollout.name))
        check_settings(settings, n_train=n_train, n_val=n_val, n_test=n_test)
        self._check_proxy()
        try:
            as_trajectory_adapter(self._adapter)
        except TypeError as exc:
            raise ConfigError(str(exc)) from exc

    def _check_proxy(self) -> None:
        proxy = self.get_llm_proxy()
        if isinstance(proxy, RemoteProxy):
            raise ConfigError(
                f"llm_proxy is {proxy.url}, which runs by itself and cannot be given the model that is trained; leave "
                "it out, or give options of one that runs here, as in llm_proxy=True"
            )
        path = str(self.settings.verl.actor_rollout_ref.model.path)
        named = {str(each.get("model_name")) for each in proxy.model_list} if isinstance(proxy, LLMProxy) else set()
        if taken := named & {path, Path(path).name}:
            raise ConfigError(
                f"llm_proxy has a model {min(taken)!r}, which the model that is trained is called; give the one of "
                "llm_proxy another model_name"
            )

    def _checkpoints(self, name: str) -> Path:
        """Return where this work keeps its checkpoints: a folder of its own, so that no other run continues it."""
        recording = None if self._trainer is None else self.get_trainer().recording
        if recording is not None:
            return Path(recording.folder.path, "checkpoints", name)
        return Path(str(self.settings.verl.trainer.default_local_dir)).absolute() / name

    def _told_once(self, bridge: Bridge, name: str, last: Any) -> Callable[[Mapping[str, Any], int], None]:
        """Return what reports the measurements of a step, in the trainer's thread; of step 0 before the training.

        A step that a killed run takes again, from its checkpoint or from the start, was reported before, and is not
        again.

        Args:
            bridge: To the store.
            name: Under this one the store has the last step that was reported.
            last: That step; None when none was.
        """

        def tell(metrics: Mapping[str, Any], step: int) -> None:
            nonlocal last
            if last is not None and step <= last:
                return
            numbers_only = {name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real)}
            self.report(numbers_only, step=step or None)
            last = step
            bridge.call(self.get_store().save_state(name, step))

        return tell


class PPO(VERL):
    """`VERL` with a critic and generalised advantage estimation."""

    _preset = "ppo"


def work_of(settings: Settings, *, n_train: int, n_val: int) -> dict[str, Any]:
    """Return what tells a training from another one, as JSON has it: the same is gone on with.

    Args:
        settings: Its config. Where this says that nothing is to be gone on with, each training is another one.
        n_train: How many samples it has.
        n_val: How many to validate on.
    """
    work = {"config": _digest(settings), "train": n_train, "val": n_val}
    if settings.verl.trainer.resume_mode == "disable":
        work["anew"] = secrets.token_hex(8)
    return work


async def checkpoint_folder(store: LightningStore, key: str, *, of: Any) -> str:
    """Return the name of the folder that this work keeps its checkpoints in, until it has succeeded.

    Unlike the names of its requests, it outlives an `AlgorithmError`: what was learned is not to be learned again.

    Args:
        store: Where the name is kept.
        key: The name of a new one.
        of: Which work it is. Another one has another folder.
    """
    kept = await store.load_state(_CHECKPOINTS)
    if not isinstance(kept, dict) or kept["of"] != of:
        kept = {"of": of, "folder": key}
        await store.save_state(_CHECKPOINTS, kept)
    return str(kept["folder"])


def _daemon_class(given: type | str | None) -> type[RolloutManager]:
    found = load_object(given) if isinstance(given, str) else given or RolloutManager
    if not (isinstance(found, type) and issubclass(found, RolloutManager)):
        raise ConfigError(
            f"daemon_cls is {given!r}; it has to be a subclass of lightning_verl.RolloutManager, which runs the "
            "rollouts here (AgentModeDaemon is for a training loop of your own)"
        )
    return found


def _others(resources: NamedResources | None) -> NamedResources:
    return {name: resource for name, resource in (resources or {}).items() if name != RESOURCE}


def _digest(settings: Settings) -> str:
    """Tell configs apart in a few characters: another one is other work."""
    config = copy.deepcopy(settings.verl)
    for key in settings.of_machine:
        OmegaConf.update(config, key, None, force_add=True)
    text = OmegaConf.to_yaml(config, sort_keys=True) + repr(settings.learning)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
