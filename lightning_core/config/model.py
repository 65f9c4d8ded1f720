"""What a config file may say."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_core.agent import LitAgent
from lightning_core.config.datasets import load_dataset
from lightning_core.config.files import ConfigFile, read_config
from lightning_core.errors import ConfigError, RegistryError
from lightning_core.registry import did_you_mean, load_object
from lightning_core.runs import FitResult
from lightning_core.trainer import Trainer
from lightning_core.types import Dataset, NamedResources

Component = str | dict[str, Any]
"""A name, `"package.module:Class"`, or a mapping with a `name` and options."""


class Config(BaseModel):
    """The keys of a config file: the parameters of `Trainer` and of `Trainer.fit`, under the same names."""

    model_config = ConfigDict(extra="forbid")

    agent: str
    """`"module:name"` of a `LitAgent`. Modules are looked for in the config file's folder first."""
    algorithm: Component
    store: Component = "memory"
    tracer: Component = "otel"
    runner: Component = "agent"
    strategy: Component = "local"
    n_runners: int | None = Field(default=None, ge=1)
    max_rollouts: int | None = Field(default=None, ge=1)
    initial_resources: NamedResources | None = None
    train_dataset: str | list[Any] | None = None
    val_dataset: str | list[Any] | None = None
    test_dataset: str | list[Any] | None = None
    hooks: list[str] = Field(default_factory=list)
    """`"module:name"` of plugins with hooks: objects, or classes that are called without arguments."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer and what it is to run."""

    trainer: Trainer
    agent: LitAgent[Any]
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    test_dataset: Dataset[Any] | None

    def fit(self) -> FitResult:
        """Run it; see `Trainer.fit`."""
        return self.trainer.fit(
            self.agent, self.train_dataset, val_dataset=self.val_dataset, test_dataset=self.test_dataset
        )


def load_job(path: Path, *, hooks: list[object] | None = None) -> Job:
    """Make a trainer, an agent and datasets of a config file.

    The file's folder is put in front of the module search path, as Python does with a script's.

    Args:
        path: The config file.
        hooks: More plugins with hooks, told before those of the file.

    Raises:
        ConfigError: When the file, or what it names, is wrong; says where and what would be right.
        RegistryError: When a component cannot be found, loaded or built.
    """
    file = read_config(path)
    config = _validate(file)
    folder = file.path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    agent = _load(file, "agent", config.agent)
    if not isinstance(agent, LitAgent):
        raise ConfigError(
            f"{file.where(('agent',))}: agent {config.agent!r} is a {type(agent).__name__}; "
            "decorate the function with @rollout, or name an instance of a LitAgent"
        )
    datasets = {name: _dataset(file, name, getattr(config, name), folder) for name in _DATASETS}
    plugins = [_load(file, "hooks", name) for name in config.hooks]
    trainer = Trainer(
        algorithm=config.algorithm,
        store=config.store,
        tracer=config.tracer,
        runner=config.runner,
        strategy=config.strategy,
        n_runners=config.n_runners,
        max_rollouts=config.max_rollouts,
        initial_resources=config.initial_resources,
        hooks=[*(hooks or ()), *plugins],
    )
    return Job(trainer, agent, **datasets)


_DATASETS = ("train_dataset", "val_dataset", "test_dataset")


def _validate(file: ConfigFile) -> Config:
    try:
        return Config.model_validate(file.values)
    except ValidationError as exc:
        raise ConfigError("\n".join(_explain(file, fault) for fault in exc.errors())) from exc


def _explain(file: ConfigFile, fault: Any) -> str:
    place = tuple(part for part in fault["loc"])
    name = ".".join(str(part) for part in place)
    if fault["type"] == "missing":
        return f"{file.path}: the key {name!r} is missing"
    where = file.where(place)
    if fault["type"] == "extra_forbidden":
        keys = Config.model_fields if len(place) == 1 else ()
        return f"{where}: unknown key {name!r}{did_you_mean(place[-1], keys)}"
    return f"{where}: {name} is {fault['input']!r}: {fault['msg']}"


def _load(file: ConfigFile, key: str, path: str) -> Any:
    try:
        return load_object(path)
    except RegistryError as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}") from exc


def _dataset(file: ConfigFile, key: str, source: str | list[Any] | None, folder: Path) -> Dataset[Any] | None:
    if source is None:
        return None
    try:
        return load_dataset(source, folder)
    except (ConfigError, RegistryError) as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}") from exc
