"""From what a config file says of a component to the component."""

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_core.adapter import TraceAdapter
from lightning_core.algorithm import Algorithm
from lightning_core.config.files import ConfigFile, Place
from lightning_core.config.model import COMPONENTS, Config
from lightning_core.errors import BrokenPlugin, ConfigError, InvalidComponent, RegistryError
from lightning_core.execution import ExecutionStrategy
from lightning_core.registry import default_registry, load_object
from lightning_core.registry.options import Options
from lightning_core.registry.registry import is_factory, require_buildable
from lightning_core.runner import Runner
from lightning_core.runs.loggers import RunLogger
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer


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
        ConfigError: When there is no such file, its name is not a module name, or another module has that name.
    """
    place, _, name = path.rpartition(":")
    if not place.endswith(".py"):
        return path
    file = (folder / place).resolve()
    if not file.is_file():
        raise ConfigError(f"{path!r}: there is no file {file}")
    if not file.stem.isidentifier():
        raise ConfigError(f"{path!r}: {file.name} cannot be imported; rename it, as in my_agent.py")
    search_first(file.parent)
    loaded = getattr(sys.modules.get(file.stem), "__file__", None)
    if loaded is not None and Path(loaded).resolve() != file:
        raise ConfigError(f"{path!r}: this process has loaded {loaded} under the name {file.stem!r}; rename it")
    return f"{file.stem}:{name}"


def load_named(file: ConfigFile, place: Place, path: str) -> Any:
    """Load what `"module:name"` or `"file.py:name"` names; files are found from the config's folder.

    Raises:
        ConfigError: When there is no such thing, or its module cannot be imported.
    """
    try:
        return load_object(import_path(path, file.path.resolve().parent))
    except ConfigError as exc:
        raise ConfigError(f"{file.where(place)}: {place[0]}: {exc}") from exc
    except RegistryError as exc:
        raise ConfigError(f"{file.where(place)}: {place[0]}: {exc}{raised_at(file, exc)}") from exc


def raised_at(file: ConfigFile, error: Exception) -> str:
    """Say on which line a module could not be imported, the config's own modules first; empty for other errors."""
    if not isinstance(error, BrokenPlugin) or error.__cause__ is None:
        return ""
    folder = file.path.resolve().parent
    frames = [each for each in traceback.extract_tb(error.__cause__.__traceback__) if not each.filename.startswith("<")]
    own = [each for each in frames if Path(each.filename).is_relative_to(folder)]
    return "".join(f" ({each.filename}:{each.lineno})" for each in (own or frames)[-1:])


def check_origin(file: ConfigFile, place: Place, path: str) -> None:
    """Refuse a module of another folder where the config's folder has one of that name.

    Raises:
        ConfigError: When it is so.
    """
    folder = file.path.resolve().parent
    name = path.partition(":")[0].partition(".")[0]
    own = next((each for each in (folder / f"{name}.py", folder / name / "__init__.py") if each.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if own is not None and loaded is not None and Path(loaded).resolve() != own.resolve():
        raise ConfigError(
            f"{file.where(place)}: {place[0]} {path!r} is meant to be in {own}, but this process has loaded "
            f"{loaded} under that name; run each config in a process of its own, or give the modules other names"
        )


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
        if not isinstance(spec, str | dict):
            continue
        try:
            options[key], wrong = _check(file, key, spec)
        except RegistryError as exc:
            faults.append(f"{file.where((key,))}: {key}: {exc}{raised_at(file, exc)}")
        else:
            faults += wrong
    return options, faults


def build_loggers(file: ConfigFile, config: Config) -> list[RunLogger]:
    """Build the loggers.

    Raises:
        ConfigError: When one cannot be found or built; says which.
    """
    built = []
    for index, spec in enumerate(config.loggers):
        try:
            built.append(default_registry().build("loggers", spec, expected=RunLogger))
        except (RegistryError, ValueError) as exc:
            raise ConfigError(f"{file.where(('loggers', index))}: loggers: {exc}{raised_at(file, exc)}") from exc
    return built


def build_component(file: ConfigFile, config: Config, key: str) -> Any:
    """Build a component.

    Raises:
        ConfigError: When it refuses an option, or misses one.
    """
    spec = getattr(config, key)
    try:
        return default_registry().build(COMPONENTS[key], spec, expected=EXPECTED[key])
    except RegistryError as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}{raised_at(file, exc)}") from exc
    except ValueError as exc:
        raise ConfigError(f"{file.where(place_of(str(exc), config, (key,)))}: {key}: {exc}") from exc


def place_of(message: str, config: Config, keys: tuple[str, ...] = ()) -> Place:
    """Return the place that a message about a value begins with, as far as it can be told.

    Args:
        message: Such as `n_epochs is 0; ...`, or `initial_resources: main_prompt: ...`.
        config: What the message is about.
        keys: The components that it may be about; where it is one, that is its place at the least.
    """
    name = message.partition(" ")[0].rstrip(":")
    for key in keys:
        spec = getattr(config, key)
        if isinstance(spec, Mapping) and name in spec:
            return (key, name)
    if len(keys) == 1:
        return keys
    return tuple(message.split(": ")[:-1]) if message.startswith(f"{name}: ") else (name,)


def _check(file: ConfigFile, key: str, spec: str | dict[str, Any]) -> tuple[Options, list[str]]:
    kind = COMPONENTS[key]
    name = spec if isinstance(spec, str) else spec.get("name")
    if not isinstance(name, str):
        raise InvalidComponent(
            f"it is a mapping without a string under 'name' (its keys: {', '.join(map(repr, spec)) or 'none'}); "
            "it has to be as in {name: baseline, n_epochs: 2}"
        )
    source = load_object(name) if ":" in name else default_registry().load(kind, name)
    label = f"{key} {name!r}"
    require_buildable(label, source, EXPECTED[key])
    options = Options(source if is_factory(source) else None)
    given = {} if isinstance(spec, str) else {option: value for option, value in spec.items() if option != "name"}
    return options, placed(file, key, options.faults(label, given))


def placed(file: ConfigFile, key: str, faults: Mapping[str, str]) -> list[str]:
    """Say where each fault of an option is."""
    return [f"{file.where((key, option))}: {fault}" for option, fault in faults.items()]
