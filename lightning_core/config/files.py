"""Config files: their values, the line of each, and what is set over them, as in `algorithm.beam_width=2`."""

import copy
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lightning_core.config.model import COMPONENTS, DATASETS, Config
from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean
from lightning_core.registry.options import kind_of


class YamlFault(ValueError):
    """A text is no YAML that can be used."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line
        """Where, from 1; None when that is not known."""


class _Loader(yaml.SafeLoader):
    """Takes `1e-6` for a number as well, as YAML 1.2 does, and as learning rates are written."""


def tell_numbers(reader: type[yaml.SafeLoader | yaml.SafeDumper]) -> None:
    """Let a loader, or a dumper, take what is a number with an exponent for one."""
    reader.add_implicit_resolver(_FLOAT_TAG, _WITH_EXPONENT, list("-+.0123456789"))


def read_yaml(text: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """Return what a text says, and the line of each of its keys and elements, by the keys and indexes that lead there.

    Raises:
        YamlFault: When it is malformed, or when a mapping has a key twice or one that is not a string.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, {}
        _note_lines(root, (), lines, inside=())
        return loader.construct_document(root), lines
    except (yaml.YAMLError, ValueError) as exc:  # ValueError: for one, of a date that does not exist
        if isinstance(exc, YamlFault):
            raise
        mark = getattr(exc, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise YamlFault(f"no valid YAML: {getattr(exc, 'problem', None) or exc}", line) from exc


def _note_lines(
    node: yaml.Node,
    place: tuple[str | int, ...],
    lines: dict[tuple[str | int, ...], int],
    *,
    inside: tuple[yaml.Node, ...],
) -> None:
    if node in inside:
        raise YamlFault("the alias stands inside of what it names", lines[place])
    inside = (*inside, node)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                continue
            line = key.start_mark.line + 1
            if key.tag != _STRING_TAG:
                raise YamlFault(f"a key is a string; put quotes around {_written(key)}", line)
            inner = (*place, key.value)
            if inner in lines:
                raise YamlFault(f"the key {key.value!r} is there twice, first on line {lines[inner]}", line)
            lines[inner] = line
            _note_lines(value, inner, lines, inside=inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inner = (*place, index)
            lines[inner] = value.start_mark.line + 1
            _note_lines(value, inner, lines, inside=inside)


def _written(key: yaml.Node) -> str:
    return str(key.value) if isinstance(key, yaml.ScalarNode) else "it"


_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_FLOAT_TAG = "tag:yaml.org,2002:float"
_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
tell_numbers(_Loader)


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
        ConfigError: When it cannot be read, is malformed, is not a mapping, or has a key twice; says where.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"it is not UTF-8 text: {exc}"
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
        return ConfigFile(path, tomllib.loads(text), {})
    except tomllib.TOMLDecodeError as exc:
        match = re.search(r"at line (\d+)", str(exc))
        line = match[1] if match else text.count("\n") + 1  # else it says: at end of document
        raise ConfigError(f"{path}:{line}: no valid TOML: {exc}") from exc


_NAMED = frozenset((*COMPONENTS, *DATASETS))
"""The keys whose value may be a bare name, which stands for a mapping with that `name`."""


def override(file: ConfigFile, assignments: Iterable[str]) -> ConfigFile:
    """Return a file with values set over those that it has. Later ones win.

    What becomes of a value that a key does not take is for the validation to say; here it is only put in its place.

    Args:
        file: Is not changed.
        assignments: Each is `key.key=value`; the value is YAML. An element of a list is named by its index, from 0.

    Raises:
        ConfigError: When one has another form, or names a place that there cannot be.
    """
    values, lines, overrides = copy.deepcopy(file.values), dict(file.lines), dict(file.overrides)
    for assignment in assignments:
        keys, value = _parse(assignment)
        label = _label(keys)
        place = _put(values, keys, value, label)
        for known in [each for each in lines if each[: len(place)] == place]:
            del lines[known]
        for known in [each for each in overrides if each[: len(place)] == place]:
            del overrides[known]
        overrides[place] = label
    return ConfigFile(file.path, values, lines, overrides)


def _parse(assignment: str) -> tuple[tuple[str, ...], Any]:
    path, equals, text = assignment.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        # The text is not shown: without an equals sign it may be a secret that went astray.
        raise ConfigError("--set takes KEY=VALUE, with dots between keys, as in: --set algorithm.beam_width=2")
    if keys[0] not in Config.model_fields:
        raise ConfigError(f"{_label(keys)}: unknown key {keys[0]!r}{did_you_mean(keys[0], Config.model_fields)}")
    try:
        return keys, read_yaml(text)[0]
    except YamlFault as exc:
        raise ConfigError(f"{_label(keys)}: {exc}; put quotes around a text, as in 'KEY=\"a: b\"'") from exc


def _label(keys: tuple[str, ...]) -> str:
    """Return what an assignment is called in a message: without its value, which may be a secret."""
    return f"--set {'.'.join(keys)}"


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any, label: str) -> Place:
    """Put a value in its place, make what is missing on the way, and return the place."""
    place: Place = ()
    inside: Any = values
    for number, key in enumerate(keys, start=1):
        if isinstance(inside, list):
            if not key.isdecimal() or int(key) >= len(inside):
                raise ConfigError(
                    f"{label}: {'.'.join(map(str, place))} is a list of {len(inside)}; name an element of it by its "
                    f"index from 0, not by {key!r}, or set the whole list"
                )
            step: str | int = int(key)
        elif isinstance(inside, dict):
            step = key
        else:
            raise ConfigError(
                f"{label}: {'.'.join(map(str, place))} is {kind_of(inside)}, which has nothing inside to set; "
                f"set it as a whole, as in: --set {'.'.join(map(str, place))}=VALUE"
            )
        place = (*place, step)
        if number == len(keys):
            inside[step] = value
        else:
            inside = _opened(inside, step, place)
    return place


def _opened(inside: Any, step: Any, place: Place) -> Any:
    """Return what is at a step, as something that a value can be put into, where that is possible."""
    there = inside.get(step) if isinstance(inside, dict) else inside[step]
    is_key = len(place) == 1
    if there is None and is_key and place[0] in COMPONENTS and not Config.model_fields[place[0]].is_required():
        there = Config.model_fields[place[0]].default
    if there is None:
        there = {}
    elif isinstance(there, str) and is_key and place[0] in _NAMED:
        there = {"name": there}
    inside[step] = there
    return there
