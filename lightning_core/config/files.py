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
        ConfigError: When it cannot be read, is malformed, is no mapping, or has a key twice; says where.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"it is no UTF-8 text: {exc}"
        raise ConfigError(f"cannot read config file {path}: {reason}") from exc
    if path.suffix == ".toml":
        try:
            return ConfigFile(path, tomllib.loads(text))
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{path}: no valid TOML: {exc}") from exc
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config file ends in .yaml, .yml or .toml, not in {path.suffix!r}")
    return _read_yaml(path, text)


def _read_yaml(path: Path, text: str) -> ConfigFile:
    lines: dict[Place, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            _note_lines(path, root, (), lines, inside=())
        values = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError) as exc:  # ValueError: for one, of a date that does not exist
        if isinstance(exc, ConfigError):
            raise
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise ConfigError(f"{place}: no valid YAML: {getattr(exc, 'problem', None) or exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values, as in: agent: my_agent:solve")
    return ConfigFile(path, values, lines)


def _note_lines(
    path: Path, node: yaml.Node, place: Place, lines: dict[Place, int], *, inside: tuple[yaml.Node, ...]
) -> None:
    """Note the lines of what is in a node, and refuse what PyYAML would let pass."""
    if node in inside:
        raise ConfigError(f"{path}:{lines[place]}: the alias stands inside of what it names")
    inside = (*inside, node)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                continue
            line = key.start_mark.line + 1
            if key.tag != _STRING_TAG:
                raise ConfigError(f"{path}:{line}: a key is a string; put quotes around {_written(key)}")
            inner = (*place, key.value)
            if inner in lines:
                raise ConfigError(f"{path}:{line}: the key {key.value!r} is there twice, first on line {lines[inner]}")
            lines[inner] = line
            _note_lines(path, value, inner, lines, inside=inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inner = (*place, index)
            lines[inner] = value.start_mark.line + 1
            _note_lines(path, value, inner, lines, inside=inside)


def _written(key: yaml.Node) -> str:
    return str(key.value) if isinstance(key, yaml.ScalarNode) else "it"


_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
