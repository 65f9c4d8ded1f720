"""Whether the keys that a user sets exist, and take such values."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_core.registry import nearest
from lightning_core.registry.options import show_value
from lightning_verl.config.given import Given, Keys
from lightning_verl.config.without_effect import why_without_effect

_OPEN = frozenset(
    {
        ("ray_kwargs", "ray_init"),
        ("ray_kwargs", "ray_init", "runtime_env"),
        ("global_profiler", "global_tool_config", "nsys", "controller_nsight_options"),
        ("global_profiler", "global_tool_config", "nsys", "worker_nsight_options"),
    }
)
"""What goes on to another program, whose keys verl does not list."""

_COUNTS = re.compile(
    r"(_size|_length|_len|_steps|_epochs|_workers|_freq|_per_node|_per_gpu|_rank|_bs|_turns|_tokens|_seqs|_keep)$"
    r"|^(n|nnodes)$"
)
"""Names of what is counted, so that no fraction is right."""

_LISTED = 15
"""The most keys that a message lists."""

_FORMER = {"data.image_base_dir": "the agent reads its images itself; give it whole paths in its samples"}
"""By key of agentlightning 0.3 that verl does not have, who does here what it was for."""

_ALSO_TEXT = frozenset({"rollout_is_threshold"})
"""Names of numbers that verl takes as a text, too, such as `0.5_2.0` for two of them."""


def faults_of_keys(given: Given, defaults: DictConfig) -> Iterator[str]:
    """Give what is wrong with keys and types, in the order in which they were set.

    verl's defaults say which keys there are. The type of a value is that of the default, where it has one; a number
    is as good as another, unless it counts something.

    Args:
        given: What the user set, without our own keys.
        defaults: verl's, with what is always set over them.
    """
    yield from _faults(given, given.values, defaults, (), root=defaults)


def _faults(
    given: Given, values: Mapping[str, Any], defaults: DictConfig, inside: Keys, *, root: DictConfig
) -> Iterator[str]:
    known = [str(key) for key in defaults]
    is_open = inside in _OPEN or (inside != () and not known)
    for key, value in values.items():
        keys = (*inside, key)
        name = ".".join(keys)
        if key not in known:
            if name in _FORMER:
                yield f"{given.where(keys)}{name} has no effect: {_FORMER[name]}; leave it out"
            elif not is_open and keys not in given.added:
                yield f"{given.where(keys)}unknown key {name!r}{_meant(key, inside, known, root)}"
            continue
        default = _default(defaults, key)
        if isinstance(value, Mapping):
            if isinstance(default, DictConfig):
                yield from _faults(given, value, default, keys, root=root)
            elif default is not None:
                yield f"{given.where(keys)}{name} is a mapping; it has to be {_type_in_words(default, key)}"
        elif not _fits(value, default, key):
            yield f"{given.where(keys)}{name} is {show_value(name, value)}; it has to be {_type_in_words(default, key)}"


def with_whole_counts(values: Mapping[str, Any], defaults: DictConfig) -> dict[str, Any]:
    """Return what was set, with an int for each whole number where something is counted, or verl has an int.

    YAML and JSON may say 8.0.

    Args:
        values: Nested, as `Given` has them.
        defaults: verl's, with what is always set over them.
    """
    return {key: _with_whole_counts(value, _default(defaults, key), key) for key, value in values.items()}


def _with_whole_counts(value: Any, default: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return with_whole_counts(value, default if isinstance(default, DictConfig) else DictConfig({}))
    is_count = _COUNTS.search(key) or (isinstance(default, int) and not isinstance(default, bool))
    return int(value) if is_count and isinstance(value, float) and value.is_integer() else value


def _meant(key: str, inside: Keys, known: list[str], root: DictConfig) -> str:
    """Return the end of a message: the nearest key beside it, or else anywhere, of those that have an effect."""
    known = [each for each in known if why_without_effect((*inside, each)) is None]
    beside = nearest(key, known)
    if beside is not None:
        return f". Did you mean {'.'.join((*inside, beside))!r}?"
    everywhere = {keys[-1]: ".".join(keys) for keys in reversed(list(_every_key(root, ())))}
    elsewhere = nearest(key, everywhere)
    if elsewhere is not None:
        return f". Did you mean {everywhere[elsewhere]!r}?"
    listed = f"; there are: {', '.join(known)}" if len(known) <= _LISTED else ""
    return f"{listed}. A key that verl does not list is written with a plus, as '+{'.'.join((*inside, key))}'"


def _every_key(config: DictConfig, inside: Keys) -> Iterator[Keys]:
    """Give the keys that have an effect."""
    for key in config:
        keys = (*inside, str(key))
        if why_without_effect(keys) is not None:
            continue
        yield keys
        if OmegaConf.is_missing(config, key):
            continue
        if not OmegaConf.is_interpolation(config, str(key)) and OmegaConf.is_dict(config[key]):
            yield from _every_key(config[key], keys)


def _default(config: DictConfig, key: Any) -> Any:
    """Return a default, with what it refers to; None where it is missing, or refers to what is."""
    if OmegaConf.is_missing(config, key):
        return None
    try:
        return config[key]
    except OmegaConfBaseException:
        return None


def _fits(value: Any, default: Any, key: str) -> bool:
    if isinstance(value, str) and "${" in value:
        return True
    if value is None:
        return not isinstance(default, DictConfig | bool) and not (_is_number(default) and _COUNTS.search(key))
    if isinstance(value, str) and key in _ALSO_TEXT:
        return True
    if isinstance(value, int | float) and not isinstance(value, bool) and _COUNTS.search(key):
        return float(value).is_integer() and (default is None or _is_number(default) or isinstance(default, str))
    if isinstance(default, DictConfig):
        return False
    if isinstance(default, bool):
        return isinstance(value, bool)
    if _is_number(default):
        whole = isinstance(default, int) and default not in (-1, 0, 1)
        return _is_number(value) and (not whole or float(value).is_integer())
    if isinstance(default, ListConfig):
        # verl takes one name where it has a list of them, as for loggers and files
        return isinstance(value, list | tuple | str)
    if isinstance(default, str):
        return isinstance(value, str | list | tuple)
    if default is None and _COUNTS.search(key):
        return _is_number(value)
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_in_words(default: Any, key: str) -> str:
    if isinstance(default, DictConfig):
        return "a mapping"
    if isinstance(default, bool):
        return "true or false"
    if _COUNTS.search(key) or (isinstance(default, int) and default not in (-1, 0, 1)):
        return "a whole number"
    if _is_number(default):
        return "a number"
    return "a list" if isinstance(default, ListConfig) else "a text"
