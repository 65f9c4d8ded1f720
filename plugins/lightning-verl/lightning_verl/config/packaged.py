"""verl's packaged defaults, read without importing verl, which would import torch."""

import copy
import functools
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean

_NAME = "ppo_trainer"


def packaged_defaults(model_engine: object = "dp") -> DictConfig:
    """Compose what verl's trainer is started with when nothing is set.

    Args:
        model_engine: The engine that trains; verl has a set of defaults for each.

    Raises:
        ConfigError: When verl is not installed, or has no such engine.
    """
    folder = _folder()
    engines = sorted(path.stem for path in (folder / "model_engine").glob("*.yaml"))
    if model_engine not in engines:
        raise ConfigError(
            f"model_engine is {model_engine!r}; verl has: {', '.join(engines)}{did_you_mean(model_engine, engines)}"
        )
    return copy.deepcopy(_composed(folder, str(model_engine)))


@functools.cache  # it takes half a second
def _composed(folder: Path, model_engine: str) -> DictConfig:
    theirs = GlobalHydra.instance().hydra  # of a program that uses Hydra itself
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            composed = compose(_NAME, overrides=[f"model_engine={model_engine}"])
    finally:
        GlobalHydra.instance().hydra = theirs
    OmegaConf.set_struct(composed, False)
    return composed


def _folder() -> Path:
    spec = find_spec("verl")
    for location in (spec and spec.submodule_search_locations) or ():
        folder = Path(location) / "trainer" / "config"
        if (folder / f"{_NAME}.yaml").is_file():
            return folder.resolve()
    raise ConfigError("verl is not installed; install lightning-verl with its dependencies: pip install lightning-verl")
