"""From what a config file says of a component to the component."""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lightning_core.adapter import TraceAdapter
from lightning_core.agent import LitAgent
from lightning_core.agent.environments import (
    SPLITS,
    Environment,
    Split,
    TaskRows,
    kept_rows,
    make_environment,
    take,
)
from lightning_core.algorithm import Algorithm
from lightning_core.config.datasets import EnvironmentSource
from lightning_core.config.files import ConfigFile, Place
from lightning_core.config.model import COMPONENTS, DATASETS, Config
from lightning_core.errors import (
    BrokenPlugin,
    ConfigError,
    InvalidComponent,
    InvalidOptions,
    LightningError,
    RegistryError,
)
from lightning_core.execution import ExecutionStrategy
from lightning_core.registry import Kind, default_registry, load_object
from lightning_core.registry.options import Options
from lightning_core.registry.registry import is_factory, require_buildable
from lightning_core.runner import Runner
from lightning_core.runs import RunFolder
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer

T = TypeVar("T")

MAIN_PROMPT = "main_prompt"
"""The name of a prompt where the resources have none yet."""


def search_first(folder: Path) -> None:
    """Put a folder in front of the module search path, as Python does with a script's."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def import_path(path: str, folder: Path) -> str:
    """Return the `module:object` of what may be given as `file.py:object`, ready to be imported.

    The folder of such a file is put in front of the module search path.

    Args:
        path: What is named.
        folder: Where the path of a file begins.

    Raises:
        ConfigError: When it is a file alone, there is no such file, its name is not a module name, or another module
            has that name.
    """
    if path.endswith(".py"):
        raise ConfigError(f"{path!r} is a file; name what is in it, too, as in {path + ':solve'!r}")
    place, _, name = path.rpartition(":")
    if not place.endswith(".py"):
        return path
    file = (folder / place).resolve()
    if not file.is_file():
        raise ConfigError(f"{path!r}: there is no file {file}")
    if not file.stem.isidentifier():
        raise ConfigError(f"{path!r}: {file.name} cannot be imported; rename it, as in my_agent.py")
    search_first(file.parent)
    _check_loaded(path, file)
    return f"{file.stem}:{name}"


def load_named(file: ConfigFile, path: str) -> Any:
    """Load what `"module:name"` or `"file.py:name"` names; files are found from the config's folder.

    Raises:
        ConfigError: When there is no such file.
        RegistryError: When there is no such thing, or its module cannot be imported.
    """
    return load_object(import_path(path, file.path.resolve().parent))


@contextmanager
def located(file: ConfigFile, *place: str | int, also: type[Exception] = ConfigError) -> Iterator[None]:
    """Say of an error of the block where in the file its cause is.

    Args:
        file: The config file.
        place: What the block is about; an option of it, where the error begins with one.
        also: What else than a `RegistryError` may be wrong with it.

    Raises:
        ConfigError: In place of that error.
    """
    try:
        yield
    except (RegistryError, also) as exc:
        raise ConfigError("\n".join(faults_at(file, place, exc))) from exc


def faults_at(file: ConfigFile, place: Place, error: Exception) -> list[str]:
    """Say what an error tells, and where: of each option that does not fit, or of the place as a whole."""
    if isinstance(error, InvalidOptions):
        return [f"{file.where((*place, option))}: {fault}" for option, fault in error.faults.items()]
    option = str(error).partition(" ")[0].strip("':")
    reason = error if isinstance(error, LightningError | ValueError) else f"it raised {error!r}"
    return [f"{file.where((*place, option))}: {place[0]}: {reason}{raised_at(file.path.resolve().parent, error)}"]


def raised_at(folder: Path, error: Exception) -> str:
    """Say on which line a module could not be imported, of the folder's modules first; empty for other errors."""
    if not isinstance(error, BrokenPlugin) or error.__cause__ is None:
        return ""
    frames = [each for each in traceback.extract_tb(error.__cause__.__traceback__) if not each.filename.startswith("<")]
    folder_frames = [each for each in frames if Path(each.filename).is_relative_to(folder)]
    return "".join(f" ({each.filename}:{each.lineno})" for each in (folder_frames or frames)[-1:])


def _check_loaded(path: str, file: Path) -> None:
    """Refuse what is meant to be in a file where this process has loaded another one under the name of its module."""
    name = file.parent.name if file.name == "__init__.py" else file.stem
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None and Path(loaded).resolve() != file.resolve():
        raise ConfigError(
            f"{path!r} is meant to be in {file}, but this process has loaded {loaded} under the name {name!r}; run "
            "each config in a process of its own, or give the modules other names"
        )


def load_agent(path: str, folder: Path) -> LitAgent[Any]:
    """Load the agent that a path names; modules and files are looked for in a folder first.

    Raises:
        ConfigError: When it is not an agent, or its module is one of another folder.
        RegistryError: When there is no such thing, or its module cannot be imported.
    """
    name = path.partition(":")[0].partition(".")[0]
    for file in (folder / f"{name}.py", folder / name / "__init__.py"):
        if file.is_file():
            _check_loaded(path, file)
    loaded = load_object(import_path(path, folder))
    if not isinstance(loaded, LitAgent):
        what = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"of type {type(loaded).__name__}"
        raise ConfigError(f"{path!r} is {what}; decorate the function with @rollout, or name an instance of a LitAgent")
    return loaded


EXPECTED: dict[str, type[Any]] = {
    "algorithm": Algorithm,
    "store": LightningStore,
    "tracer": Tracer,
    "adapter": TraceAdapter,
    "runner": Runner,
    "strategy": ExecutionStrategy,
}
"""What each component has to be, by its key."""

GIVEN = {"runner": {"tracer", "max_rollouts", "reward"}, "strategy": {"n_runners"}}
"""The options that the trainer itself gives, by the component's key."""


def check_components(file: ConfigFile) -> tuple[dict[str, Options], list[str]]:
    """Find each component and check its options against what it takes. Nothing is built.

    Returns:
        What each takes, by its key; and all that is wrong, but for what is not a component at all.
    """
    options: dict[str, Options] = {}
    faults: list[str] = []
    for key in COMPONENTS:
        spec = file.values.get(key, Config.model_fields[key].default)
        if isinstance(spec, str | dict):
            try:
                options[key] = _check(key, spec)
            except RegistryError as exc:
                faults += faults_at(file, (key,), exc)
    return options, faults


def _check(key: str, spec: str | dict[str, Any]) -> Options:
    name = spec if isinstance(spec, str) else spec.get("name")
    if not isinstance(name, str):
        raise InvalidComponent(
            f"it is a mapping without a string under 'name' (its keys: {', '.join(map(repr, spec)) or 'none'}); "
            "it has to be as in {name: baseline, n_epochs: 2}"
        )
    source = load_object(name) if ":" in name else default_registry().load(COMPONENTS[key], name)
    label = f"{key} {name!r}"
    require_buildable(label, source, EXPECTED[key])
    options = Options(source if is_factory(source) else None)
    given = {} if isinstance(spec, str) else {option: value for option, value in spec.items() if option != "name"}
    if faults := options.faults(label, given):
        raise InvalidOptions(label, faults)
    return options


def build(file: ConfigFile, kind: Kind, spec: object, expected: type[T], *place: str | int) -> T:
    """Build a component, or one of the loggers, that stands at a place of the file.

    Raises:
        ConfigError: When it cannot be found, refuses an option, or misses one.
    """
    with located(file, *place, also=ValueError):
        return default_registry().build(kind, spec, expected=expected)


def tasks_of(
    file: ConfigFile, config: Config, folder: Path, run: RunFolder | None
) -> tuple[Environment | None, dict[str, TaskRows]]:
    """Make the environment that the datasets name, and their tasks.

    Args:
        file: The config file.
        config: What it says.
        folder: Where paths start.
        run: A run to go on with, whose tasks are read from its folder; None for a new one.

    Returns:
        The environment, None where none is named; and the tasks of each key that names it.

    Raises:
        ConfigError: When two are named, or one cannot be made or has too few tasks.
    """
    named = {key: source for key in DATASETS if isinstance(source := getattr(config, key), EnvironmentSource)}
    if not named:
        return None, {}
    (first, source), *others = named.items()
    for key, other in others:
        if (other.environment, other.model_extra) != (source.environment, source.model_extra):
            raise ConfigError(
                f"{file.where((key,))}: {key} is of another environment than {first}, or has other options; the "
                "datasets of a run are of one environment, and differ in size"
            )
    with located(file, first, also=ValueError):
        environment = make_environment(import_path(source.environment, folder), source.model_extra or {})
    defaults = dict(zip(DATASETS, SPLITS, strict=True))
    splits = {key: each.split or defaults[key] for key, each in named.items()}
    rows = {key: kept for key, each in named.items() if (kept := _kept(run, key, each)) is not None}
    sizes: dict[Split, int] = {}
    for key, split in splits.items():
        if key not in rows:
            sizes[split] = max(named[key].size, sizes.get(split, 0))
    with located(file, first):
        made = take(environment, sizes)
    return environment, {
        key: rows[key] if key in rows else TaskRows(made[splits[key]][: each.size]) for key, each in named.items()
    }


def _kept(run: RunFolder | None, key: str, source: EnvironmentSource) -> TaskRows | None:
    """Return the tasks that a run has kept; None where it has none of this source."""
    if run is None or not run.manifest_file.exists():
        return None
    path = kept_rows(run.path, key)
    if not path.exists() or run.manifest().origin.config.get(key) != source.model_dump(exclude_none=True):
        return None
    return TaskRows(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
