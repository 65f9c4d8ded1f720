"""verl's own trainer, with what is changed in it, on models that are folders without weights."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lightning_verl.bridge import Bridge
from lightning_verl.checkpoints import Schedule
from lightning_verl.config import load_settings
from lightning_verl.manager import RolloutManager
from omegaconf import OmegaConf

from lightning_core.store import InMemoryLightningStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.trainer import make_trainer_class


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


async def nothing(step: int) -> None: ...


def trainer_in(folder: Path, mode: str = "sync", *, validate: Any = None, serving: Any = None, **more: Any) -> Any:
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
        serving=cast(Any, SimpleNamespace(proxy=None)),
        tasks={},
        group_size={},
        batch_size=1,
        options=settings.learning,
        key="k",
    )
    training: Any = SimpleNamespace(
        settings=settings,
        bridge=bridge,
        manager=manager,
        serving=serving,
        schedule=Schedule(600),
        save=nothing,
        validate=validate,
        report=lambda metrics, step: None,
    )
    trainer = make_trainer_class(mode)(OmegaConf.create(settings.verl), training)
    trainer.actor_rollout_wg, trainer.train_dataloader, trainer.train_dataloader_it = Models(), Loader(), None
    return trainer


async def saved(trainer: Any, step: int) -> None:
    trainer.global_steps = step
    await asyncio.to_thread(trainer._save_checkpoint)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("global*"))
