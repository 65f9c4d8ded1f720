"""Load what a config file names, and say where in it, and in the module, something is wrong."""

import sys
import traceback
from pathlib import Path
from typing import Any

from lightning_core.config.files import ConfigFile, Place
from lightning_core.errors import BrokenPlugin, ConfigError, RegistryError
from lightning_core.registry import load_object


def search_first(folder: Path) -> None:
    """Put a folder in front of the module search path, as Python does with a script's."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def load_named(file: ConfigFile, place: Place, path: str) -> Any:
    """Load what `"module:name"` names.

    Raises:
        ConfigError: When there is no such thing, or its module cannot be imported.
    """
    try:
        return load_object(path)
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
