"""From what a config file says of a component to the component."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_core.adapter import TraceAdapter
from lightning_core.agent import LitAgent
from lightning_core.algorithm import Algorithm
from lightning_core.config.files import ConfigFile, Place
from lightning_core.config.model import COMPONENTS, Config
from lightning_core.errors import BrokenPlugin, ConfigError, InvalidComponent, InvalidOptions, RegistryError
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
    loaded = getattr(sys.modules.get(file.stem), "__file__", None)
    if loaded is not None and Path(loaded).resolve() != file:
        raise ConfigError(f"{path!r}: this process has loaded {loaded} under the name {file.stem!r}; rename it")
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
    return [f"{file.where((*place, option))}: {place[0]}: {error}{raised_at(file.path.resolve().parent, error)}"]


def raised_at(folder: Path, error: Exception) -> str:
    """Say on which line a module could not be imported, of the folder's modules first; empty for other errors."""
    if not isinstance(error, BrokenPlugin) or error.__cause__ is None:
        return ""
    frames = [each for each in traceback.extract_tb(error.__cause__.__traceback__) if not each.filename.startswith("<")]
    own = [each for each in frames if Path(each.filename).is_relative_to(folder)]
    return "".join(f" ({each.filename}:{each.lineno})" for each in (own or frames)[-1:])


def check_origin(file: ConfigFile, path: str) -> None:
    """Refuse an agent's module of another folder where the config's folder has one of that name.

    Raises:
        ConfigError: When it is so.
    """
    folder = file.path.resolve().parent
    name = path.partition(":")[0].partition(".")[0]
    own = next((each for each in (folder / f"{name}.py", folder / name / "__init__.py") if each.is_file()), None)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if own is not None and loaded is not None and Path(loaded).resolve() != own.resolve():
        raise ConfigError(
            f"{file.where(('agent',))}: agent {path!r} is meant to be in {own}, but this process has loaded "
            f"{loaded} under that name; run each config in a process of its own, or give the modules other names"
        )


def require_agent(path: str, loaded: object, *, where: str = "") -> LitAgent[Any]:
    """Return what a path names, if it is an agent.

    Raises:
        ConfigError: When it is not; says where the path stands, and what would be right.
    """
    if not isinstance(loaded, LitAgent):
        what = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
        raise ConfigError(
            f"{where}agent {path!r} is {what}; decorate the function with @rollout, or name an instance of a LitAgent"
        )
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


def build_component(file: ConfigFile, config: Config, key: str) -> Any:
    """Build a component.

    Raises:
        ConfigError: When it refuses an option, or misses one.
    """
    with located(file, key, also=ValueError):
        return default_registry().build(COMPONENTS[key], getattr(config, key), expected=EXPECTED[key])


def build_logger(file: ConfigFile, index: int, spec: str | dict[str, Any]) -> RunLogger:
    """Build one of the loggers.

    Raises:
        ConfigError: When it cannot be found or built.
    """
    with located(file, "loggers", index, also=ValueError):
        return default_registry().build("loggers", spec, expected=RunLogger)
