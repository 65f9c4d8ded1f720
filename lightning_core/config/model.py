"""What a config file may say."""

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from lightning_core.agent import Grader, LitAgent
from lightning_core.config.datasets import load_dataset
from lightning_core.config.faults import explain
from lightning_core.config.files import ConfigFile, Place, read_config
from lightning_core.errors import BrokenPlugin, ConfigError, InvalidComponent, RegistryError
from lightning_core.registry import load_object
from lightning_core.runs import FitResult
from lightning_core.trainer import Trainer
from lightning_core.types import Dataset, NamedResources, RolloutConfig


def _one_of(*kinds: type, wanted: str) -> BeforeValidator:
    """Refuse what is none of some types with one message, where pydantic has one for each of them."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise PydanticCustomError("one_of", "it has to be {wanted}", {"wanted": wanted})
        return value

    return BeforeValidator(check)


Component = Annotated[
    str | dict[str, Any],
    _one_of(str, dict, wanted="a name, 'package.module:Class', or a mapping with name and options"),
]
"""A name, `"package.module:Class"`, or a mapping with a `name` and options."""

Source = Annotated[str | list[Any], _one_of(str, list, wanted="a file, 'module:name', or a list of samples")]
"""A file, `"module:name"`, or the samples themselves."""

Count = Annotated[int, Field(strict=True, ge=1)]


class Config(BaseModel):
    """The keys of a config file: the parameters of `Trainer` and of `Trainer.fit`, under the same names."""

    model_config = ConfigDict(extra="forbid")

    agent: str
    """`"module:name"` of a `LitAgent`. Modules are looked for in the config file's folder first."""
    algorithm: Component
    store: Component = "memory"
    tracer: Component = "otel"
    adapter: Component = "triplet"
    runner: Component = "agent"
    strategy: Component = "local"
    n_runners: Count | None = None
    max_rollouts: Count | None = None
    initial_resources: NamedResources | None = None
    rollout_config: RolloutConfig | None = None
    reward: str | None = None
    """`"module:name"` of a grader: a function that scores what the agent returned."""
    train_dataset: Source | None = None
    val_dataset: Source | None = None
    test_dataset: Source | None = None
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
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    agent = _load(file, ("agent",), config.agent)
    _check_origin(file, config.agent, folder)
    if not isinstance(agent, LitAgent):
        what = f"the class {agent.__name__}" if isinstance(agent, type) else f"a {type(agent).__name__}"
        raise ConfigError(
            f"{file.where(('agent',))}: agent {config.agent!r} is {what}; "
            "decorate the function with @rollout, or name an instance of a LitAgent"
        )
    datasets = {name: _dataset(file, name, getattr(config, name), folder) for name in _DATASETS}
    plugins = [_load(file, ("hooks", index), name) for index, name in enumerate(config.hooks)]
    reward = None if config.reward is None else _grader(file, config.reward)
    try:
        trainer = Trainer(
            algorithm=config.algorithm,
            store=config.store,
            tracer=config.tracer,
            adapter=config.adapter,
            runner=config.runner,
            strategy=config.strategy,
            n_runners=config.n_runners,
            max_rollouts=config.max_rollouts,
            initial_resources=config.initial_resources,
            rollout_config=config.rollout_config,
            reward=reward,
            hooks=[*(hooks or ()), *plugins],
        )
    except ValueError as exc:  # an option with a value that its component refuses
        raise ConfigError(f"{file.path}: {exc}") from exc
    return Job(trainer, agent, **datasets)


def _check_origin(file: ConfigFile, path: str, folder: Path) -> None:
    """Refuse a module of another folder where the config's folder has one of that name."""
    name = path.partition(":")[0].partition(".")[0]
    own = next((place for place in (folder / f"{name}.py", folder / name / "__init__.py") if place.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if own is not None and loaded is not None and Path(loaded).resolve() != own.resolve():
        raise ConfigError(
            f"{file.where(('agent',))}: agent {path!r} is meant to be in {own}, but this process has loaded "
            f"{loaded} under that name; run each config in a process of its own, or give the modules other names"
        )


_DATASETS = ("train_dataset", "val_dataset", "test_dataset")


def _validate(file: ConfigFile) -> Config:
    try:
        return Config.model_validate(file.values)
    except ValidationError as exc:
        raise ConfigError("\n".join(explain(file, fault, Config.model_fields) for fault in exc.errors())) from exc


def _load(file: ConfigFile, place: Place, path: str) -> Any:
    try:
        return load_object(path)
    except RegistryError as exc:
        raise ConfigError(f"{file.where(place)}: {place[0]}: {exc}{_raised_at(file, exc)}") from exc


def _raised_at(file: ConfigFile, error: Exception) -> str:
    """Say on which line a module could not be imported, the config's own modules first; empty for other errors."""
    if not isinstance(error, BrokenPlugin) or error.__cause__ is None:
        return ""
    folder = file.path.resolve().parent
    frames = [each for each in traceback.extract_tb(error.__cause__.__traceback__) if not each.filename.startswith("<")]
    own = [each for each in frames if Path(each.filename).is_relative_to(folder)]
    return "".join(f" ({each.filename}:{each.lineno})" for each in (own or frames)[-1:])


def _grader(file: ConfigFile, path: str) -> Grader:
    found = _load(file, ("reward",), path)
    try:
        return found if isinstance(found, Grader) else Grader(found)
    except InvalidComponent as exc:
        raise ConfigError(f"{file.where(('reward',))}: reward: {exc}") from exc


def _dataset(file: ConfigFile, key: str, source: str | list[Any] | None, folder: Path) -> Dataset[Any] | None:
    if source is None:
        return None
    try:
        return load_dataset(source, folder)
    except (ConfigError, RegistryError) as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}{_raised_at(file, exc)}") from exc
