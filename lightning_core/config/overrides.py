"""What is set over a config file: `algorithm.beam_width=2`."""

import copy
from collections.abc import Iterable
from typing import Any

from lightning_core.config.files import ConfigFile, Place, YamlFault, read_yaml
from lightning_core.config.model import COMPONENTS, DATASETS, Config
from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean

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


def check_overrides(assignments: Iterable[str]) -> None:
    """Check assignments where there is no file yet to set them over.

    Raises:
        ConfigError: When one has another form, or names a key that no file has.
    """
    for assignment in assignments:
        _parse(assignment)


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
                f"{label}: {'.'.join(map(str, place))} is a {type(inside).__name__}, which has nothing inside to set; "
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
