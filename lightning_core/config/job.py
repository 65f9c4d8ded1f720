"""From a config file to a trainer, with the agent and the datasets that it is to run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lightning_core.agent import Grader, LitAgent
from lightning_core.config.agents import load_agent
from lightning_core.config.components import build_component, check_components, place_of
from lightning_core.config.datasets import load_dataset
from lightning_core.config.faults import explain, in_order
from lightning_core.config.files import ConfigFile, read_config
from lightning_core.config.hub import Hub
from lightning_core.config.imports import load_named, raised_at, search_first
from lightning_core.config.model import DATASETS, Config
from lightning_core.config.options import Options
from lightning_core.config.overrides import override
from lightning_core.errors import ConfigError, InvalidComponent, InvalidInput, RegistryError
from lightning_core.logs.secrets import remember_secrets
from lightning_core.plugins import Hooks
from lightning_core.runs import FitResult, RunFolder
from lightning_core.runs.plans import plan_of
from lightning_core.trainer import Trainer
from lightning_core.trainer.proxies import is_remote
from lightning_core.types import Dataset


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer and what it is to run."""

    trainer: Trainer
    agent: LitAgent[Any]
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    test_dataset: Dataset[Any] | None
    config: Config
    """What it was made of."""
    options: dict[str, Options]
    """What each component takes, by its key."""
    file: ConfigFile
    """Where it stands."""

    def plan(self) -> object | None:
        """Return what its algorithm says that it will do; None where it does not say. See `plan_of`.

        Raises:
            ConfigError: When the algorithm cannot use what the config gives it.
            AlgorithmError: When it knows already that something else is missing.
        """
        algorithm, initial = self.trainer.algorithm, self.trainer.initial_resources
        if algorithm is None:
            return None
        own = algorithm.get_initial_resources()
        if initial is not None or own is None:
            algorithm.set_initial_resources(initial or {})
        if not is_remote(self.trainer.llm_proxy):  # nobody knows yet which models that has
            algorithm.set_llm_proxy(self.trainer.llm_proxy)
            algorithm.set_budget(self.trainer.next_budget())
        try:
            plan = plan_of(algorithm, self.train_dataset, self.val_dataset)
            if not self.config.hooks and not is_remote(self.trainer.llm_proxy):  # a hook may bring a model with its key
                algorithm.check_access()
        except InvalidInput as exc:
            raise ConfigError(f"{self.file.where(('algorithm',))}: algorithm: {exc}") from exc
        finally:
            if initial is None:
                algorithm.set_initial_resources(own)
        return plan

    def fit(self) -> FitResult:
        """Run it; see `Trainer.fit`."""
        return self.trainer.fit(
            self.agent, self.train_dataset, val_dataset=self.val_dataset, test_dataset=self.test_dataset
        )


def load_job(
    path: Path,
    *,
    hooks: list[object] | None = None,
    overrides: Iterable[str] = (),
    dry_run: bool = False,
    run_dir: Path | RunFolder | None = None,
) -> Job:
    """Make a trainer, an agent and datasets of a config file.

    The file's folder is put in front of the module search path, as Python does with a script's.

    Args:
        path: The config file.
        hooks: More plugins with hooks, told before those of the file.
        overrides: What is set over the file, each as `algorithm.beam_width=2`; the value is YAML.
        dry_run: Whether it is only to be checked. Then its store is not built, as that may make a database: the store
            of this job's trainer is one of memory.
        run_dir: Where runs get folders, as in `Trainer`; with a store in them, where the file names none.

    Raises:
        ConfigError: When the file, or what it names, is wrong; says where and what would be right.
    """
    file = override(read_config(path), overrides)
    folder = file.path.resolve().parent
    search_first(folder)
    config = _validate(file)
    for key in config.model_fields_set - set(DATASETS):
        remember_secrets(key, getattr(config, key))
    agent = load_agent(file, config.agent, has_grader=config.reward is not None)
    options, faults = check_components(file)
    if faults:
        raise ConfigError("\n".join(in_order(file, faults)))
    datasets = {key: _dataset(file, key, getattr(config, key), folder) for key in DATASETS}
    plugins = [load_named(file, ("hooks", index), name) for index, name in enumerate(config.hooks)]
    reward = None if config.reward is None else _grader(file, config.reward)
    built = {key: build_component(file, config, key) for key in ("algorithm", "tracer", "adapter")}
    if not dry_run and (run_dir is None or "store" in config.model_fields_set):
        built["store"] = build_component(file, config, "store")
    try:
        trainer = Trainer(
            **built,
            runner=config.runner,
            strategy=config.strategy,
            n_runners=config.n_runners,
            max_rollouts=config.max_rollouts,
            initial_resources=config.initial_resources,
            rollout_config=config.rollout_config,
            reward=reward,
            hooks=[*(hooks or ()), *plugins],
            run_dir=None if dry_run else run_dir,
            llm_proxy=config.llm_proxy,
            budget=config.budget,
            stop_on_identical_failures=config.stop_on_identical_failures,
        )
    except Exception as exc:
        _check_plugins(file, config, plugins)
        if not isinstance(exc, ValueError | RegistryError):
            raise
        # An option with a value that its component, or the trainer, refuses.
        place = place_of(str(exc), config, ("runner", "strategy"))
        raise ConfigError(f"{file.where(place)}: {exc}") from exc
    return Job(trainer, agent, **datasets, config=config, options=options, file=file)


def _validate(file: ConfigFile) -> Config:
    try:
        return Config.model_validate(file.values)
    except ValidationError as exc:
        faults = [explain(file, fault, Config.model_fields) for fault in exc.errors()]
        faults += check_components(file)[1]
        raise ConfigError("\n".join(in_order(file, faults))) from exc


def _check_plugins(file: ConfigFile, config: Config, plugins: Sequence[object]) -> None:
    for index, plugin in enumerate(plugins):
        try:
            Hooks([plugin])
        except Exception as exc:
            words = str(exc) if isinstance(exc, RegistryError) else f"it raised {type(exc).__name__}: {exc}"
            where = file.where(("hooks", index))
            raise ConfigError(f"{where}: hooks: {config.hooks[index]!r} cannot be used: {words}") from exc


def _grader(file: ConfigFile, path: str) -> Grader:
    found = load_named(file, ("reward",), path)
    try:
        return found if isinstance(found, Grader) else Grader(found)
    except InvalidComponent as exc:
        raise ConfigError(f"{file.where(('reward',))}: reward: {exc}") from exc


def _dataset(file: ConfigFile, key: str, source: str | Hub | list[Any] | None, folder: Path) -> Dataset[Any] | None:
    if source is None:
        return None
    try:
        return load_dataset(source, folder)
    except (ConfigError, RegistryError) as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}{raised_at(file, exc)}") from exc
