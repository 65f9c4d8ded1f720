"""What a user says of a configuration: a mapping, a YAML file, or `key.key=value`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lightning_core.config.files import YamlFault, read_yaml
from lightning_core.errors import ConfigError

Source = Mapping[str, Any] | str | Path | Sequence[str] | None
"""What a configuration can be given as; omegaconf's are mappings, too."""

Keys = tuple[str, ...]
"""The keys that lead to a value."""


@dataclass(slots=True)
class Given:
    """What was set, and where."""

    values: dict[str, Any] = field(default_factory=dict)
    """Nested; without dots in its keys."""
    places: dict[Keys, str] = field(default_factory=dict)
    """Where a value was set, for a message, such as `train.yaml:3`."""
    added: set[Keys] = field(default_factory=set)
    """What was written with a `+`: keys that verl's defaults do not have."""

    def where(self, keys: Keys) -> str:
        """Return the beginning of a message about a value: where it was set, if that is known."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.places:
                return f"{self.places[keys[:length]]}: "
        return ""

    def get(self, path: str) -> Any:
        """Return what was set at `a.b.c`; None when nothing was."""
        inside: Any = self.values
        for key in path.split("."):
            inside = inside.get(key) if isinstance(inside, dict) else None
        return inside

    def has(self, path: str) -> bool:
        """Whether something was set at `a.b.c`, be it null."""
        *parents, key = path.split(".")
        inside: Any = self.get(".".join(parents)) if parents else self.values
        return isinstance(inside, dict) and key in inside


def read_given(source: Source) -> Given:
    """Read what was given.

    Args:
        source: A mapping, in which a key may have dots; the path of a YAML file; a list of `key.key=value`, whose
            values are YAML; None for nothing.

    Raises:
        ConfigError: When it has another form, a file cannot be read, or a value is set twice in different ways.
    """
    match source:
        case None:
            return Given()
        case Mapping():
            return _of_mapping(_plain(source), {})
        case str() | Path():
            return _of_file(Path(source))
        case _ if isinstance(source, Sequence) and all(isinstance(each, str) for each in source):
            return _of_assignments(source)
        case _:
            raise ConfigError(
                f"a configuration is a mapping, the path of a YAML file or a list of 'key.key=value', not a "
                f"{type(source).__name__}"
            )


def _of_mapping(values: Mapping[str, Any], lines: Mapping[Keys, str]) -> Given:
    given = Given()
    for keys, value, written in _leaves(values, ()):
        if written in lines:
            given.places[_bare(keys)] = lines[written]
        _put(given, keys, value)
    return given


def _of_file(path: Path) -> Given:
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a configuration of verl is a file that ends in .yaml or .yml")
    try:
        values, lines = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read the configuration {path}: {exc}") from exc
    except YamlFault as exc:
        raise ConfigError(f"{path}{'' if exc.line is None else f':{exc.line}'}: {exc}") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of keys to values")
    places = {tuple(map(str, keys)): f"{path}:{line}" for keys, line in lines.items()}
    return _of_mapping(values, places)


def _of_assignments(assignments: Iterable[str]) -> Given:
    given = Given()
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = tuple(path.strip().split("."))
        if not equals or not all(key.strip("+") for key in keys):
            raise ConfigError(f"{path.strip()!r} is not of the form 'key.key=value'")
        try:
            value = read_yaml(text)[0]
        except YamlFault as exc:
            raise ConfigError(f"{path.strip()}: {exc}; put quotes around a text") from exc
        for inner, leaf, _ in _leaves(value, ()) if isinstance(value, dict) and value else [((), value, ())]:
            _put(given, (*keys, *inner), leaf)
    return given


def _leaves(values: Mapping[str, Any], inside: Keys) -> Iterator[tuple[Keys, Any, Keys]]:
    """Give the keys of each value, dots taken apart, and the keys as they are written."""
    written_inside = inside
    for key, value in values.items():
        keys, written = tuple(str(key).split(".")), (*written_inside, str(key))
        if isinstance(value, Mapping) and value:
            for inner, leaf, more in _leaves(value, ()):
                yield (*keys, *inner), leaf, (*written, *more)
        else:
            yield keys, value, written


def _put(given: Given, keys: Keys, value: Any) -> None:
    bare = _bare(keys)
    plus = next((place for place, key in enumerate(keys) if key.startswith("+")), len(keys))
    given.added |= {bare[: place + 1] for place in range(plus, len(keys))}
    inside = given.values
    for place, key in enumerate(bare[:-1]):
        inside = inside.setdefault(key, {})
        if not isinstance(inside, dict):
            raise ConfigError(f"{given.where(bare)}{'.'.join(bare)} is set, and {'.'.join(bare[: place + 1])}, too")
    if isinstance(inside.get(bare[-1]), dict) and value != {}:
        raise ConfigError(f"{given.where(bare)}{'.'.join(bare)} is set, and something inside of it, too")
    inside[bare[-1]] = _plain(value)


def _bare(keys: Keys) -> Keys:
    return tuple(key.lstrip("+") for key in keys)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value
