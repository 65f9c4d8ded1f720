"""Read a config file, and know on which line each of its values stands."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_core.config.toml_lines import toml_lines
from lightning_core.config.yaml_text import YamlFault, read_yaml
from lightning_core.errors import ConfigError

Place = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a config file says, with what was set over it."""

    path: Path
    values: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)
    """Where each value stands, from 1."""
    overrides: dict[Place, str] = field(default_factory=dict)
    """What was set from elsewhere, and what that is called in a message."""

    def where(self, place: Place) -> str:
        """Return `file:line`, or what set it, for the innermost known part of a place, for a message."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.overrides:
                return self.overrides[place[:length]]
            if place[:length] in self.lines:
                return f"{self.path}:{self.lines[place[:length]]}"
        return str(self.path)


def read_config(path: Path) -> ConfigFile:
    """Read a YAML or TOML file.

    Raises:
        ConfigError: When it cannot be read, is malformed, is no mapping, or has a key twice; says where.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"it is no UTF-8 text: {exc}"
        raise ConfigError(f"cannot read config file {path}: {reason}") from exc
    if path.suffix == ".toml":
        return _read_toml(path, text)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config file ends in .yaml, .yml or .toml, not in {path.suffix!r}")
    try:
        values, lines = read_yaml(text)
    except YamlFault as exc:
        raise ConfigError(f"{path}{'' if exc.line is None else f':{exc.line}'}: {exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values, as in: agent: my_agent:solve")
    return ConfigFile(path, values, lines)


def _read_toml(path: Path, text: str) -> ConfigFile:
    try:
        return ConfigFile(path, tomllib.loads(text), toml_lines(text))
    except tomllib.TOMLDecodeError as exc:
        found = re.search(r"at line (\d+)", str(exc))
        line = found[1] if found else text.count("\n") + 1  # else it says: at end of document
        raise ConfigError(f"{path}:{line}: no valid TOML: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: it is nested too deeply") from exc
