"""Read a config file, and know on which line each of its values stands."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lightning_core.errors import ConfigError

Place = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a config file says."""

    path: Path
    values: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)
    """Where each value stands, from 1; empty for a format that does not tell."""

    def where(self, place: Place) -> str:
        """Return `file` or `file:line` for the innermost known part of a place, for a message."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.lines:
                return f"{self.path}:{self.lines[place[:length]]}"
        return str(self.path)


def read_config(path: Path) -> ConfigFile:
    """Read a YAML or TOML file.

    Raises:
        ConfigError: When it cannot be read, is malformed, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"cannot read config file {path}: {reason}") from exc
    if path.suffix == ".toml":
        try:
            return ConfigFile(path, tomllib.loads(text))
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{path} is no valid TOML: {exc}") from exc
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config file ends in .yaml, .yml or .toml, not in {path.suffix!r}")
    return _read_yaml(path, text)


def _read_yaml(path: Path, text: str) -> ConfigFile:
    try:
        values, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{place}: no valid YAML: {getattr(exc, 'problem', None) or exc}") from exc
    if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values, as in: agent: my_agent:solve")
    lines: dict[Place, int] = {}
    _note_lines(root, (), lines)
    return ConfigFile(path, values, lines)


def _note_lines(node: yaml.Node, place: Place, lines: dict[Place, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, key.value)
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*place, index)] = value.start_mark.line + 1
            _note_lines(value, (*place, index), lines)
