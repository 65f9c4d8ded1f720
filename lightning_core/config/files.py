"""Read a config file, and know on which line each of its values stands."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lightning_core.errors import ConfigError


class YamlFault(ValueError):
    """A text is no YAML that can be used."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line
        """Where, from 1; None when that is not known."""


class _Loader(yaml.SafeLoader):
    """Takes `1e-6` for a number as well, as YAML 1.2 and whoever writes a learning rate do."""


def tell_numbers(reader: type[yaml.SafeLoader | yaml.SafeDumper]) -> None:
    """Let a loader, or a dumper, take what is a number with an exponent for one."""
    reader.add_implicit_resolver(_FLOAT_TAG, _WITH_EXPONENT, list("-+.0123456789"))


def read_yaml(text: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """Return what a text says, and the line of each of its keys and elements, by the keys and indexes that lead there.

    Raises:
        YamlFault: When it is malformed, or when a mapping has a key twice or one that is no string.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, {}
        _note_lines(root, (), lines, inside=())
        return loader.construct_document(root), lines
    except RecursionError as exc:
        raise YamlFault("it is nested too deeply", None) from exc
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


_TOKEN = re.compile(
    r"""
      (?P<string> \"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\])*" | '[^']*' )
    | (?P<skip> [ \t\r]+ | \#[^\n]* )
    | (?P<newline> \n )
    | (?P<mark> \[\[ | \]\] | [\[\]{}=,.] )
    | (?P<word> [^\s\[\]{}=,."'\#]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def toml_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line, from 1, of each key and element, by the keys and indexes that lead there.

    Args:
        text: Valid TOML; see that `tomllib` takes it first.
    """
    reader = _Reader(text)
    reader.read_document()
    return reader.lines


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self._tables_in: dict[tuple[str | int, ...], int] = {}
        """How many tables each array of tables has so far."""
        self._tokens: list[_Token] = []
        line = 1
        for match in _TOKEN.finditer(text):
            if match.lastgroup and match.lastgroup != "skip":
                self._tokens.append(_Token(match.lastgroup, match[0], line))
            line += match[0].count("\n")
        self._tokens.append(_Token("end", "", line))
        self._next = 0

    def read_document(self) -> None:
        table: tuple[str | int, ...] = ()
        while (token := self._tokens[self._next]).kind != "end":
            if token.kind == "newline":
                self._next += 1
            elif token.text in ("[", "[["):
                self._next += 1
                table = self._open_table(self._read_key(), in_array=token.text == "[[", line=token.line)
                self._next += 1  # the closing bracket
            else:
                self._read_pair(table)

    def _open_table(self, key: list[str], *, in_array: bool, line: int) -> tuple[str | int, ...]:
        place: tuple[str | int, ...] = ()
        for position, part in enumerate(key, start=1):
            place = (*place, part)
            self.lines.setdefault(place, line)
            if in_array and position == len(key):
                self._tables_in[place] = self._tables_in.get(place, 0) + 1
            if place in self._tables_in:
                place = (*place, self._tables_in[place] - 1)
                self.lines.setdefault(place, line)
        return place

    def _read_pair(self, table: tuple[str | int, ...]) -> None:
        line = self._tokens[self._next].line
        place = table
        for part in self._read_key():
            place = (*place, part)
            self.lines.setdefault(place, line)
        self._next += 1  # the equals sign
        self._read_value(place)

    def _read_key(self) -> list[str]:
        """Read a dotted key, up to what follows it."""
        parts = []
        while (token := self._tokens[self._next]).kind in ("word", "string") or token.text == ".":
            if token.kind == "string":
                parts.append(tomllib.loads(f"key = {token.text}")["key"])
            elif token.kind == "word":
                parts.append(token.text)
            self._next += 1
        return parts

    def _read_value(self, place: tuple[str | int, ...]) -> None:
        token = self._tokens[self._next]
        if token.text in ("[", "[["):
            if token.text == "[[":  # an array in an array
                self._tokens[self._next : self._next + 1] = [_Token("mark", "[", token.line)] * 2
            self._read_array(place)
        elif token.text == "{":
            self._read_inline_table(place)
        else:
            while (token := self._tokens[self._next]).kind in ("word", "string") or token.text == ".":
                self._next += 1  # a number, or a date with a time, has several

    def _read_array(self, place: tuple[str | int, ...]) -> None:
        self._next += 1
        index = 0
        while not self._closes("]"):
            token = self._tokens[self._next]
            if token.kind == "newline" or token.text == ",":
                self._next += 1
                continue
            self.lines[(*place, index)] = token.line
            self._read_value((*place, index))
            index += 1

    def _read_inline_table(self, place: tuple[str | int, ...]) -> None:
        self._next += 1
        while not self._closes("}"):
            if self._tokens[self._next].kind == "newline" or self._tokens[self._next].text == ",":
                self._next += 1
            else:
                self._read_pair(place)

    def _closes(self, bracket: str) -> bool:
        """Go past a closing bracket, when one is next."""
        token = self._tokens[self._next]
        if token.text == "]]" and bracket == "]":
            self._tokens[self._next : self._next + 1] = [_Token("mark", "]", token.line)] * 2
        if self._tokens[self._next].text != bracket:
            return False
        self._next += 1
        return True


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
