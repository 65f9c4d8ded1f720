"""What a user says of a configuration: a mapping, a YAML file, or `key.key=value`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_core.errors import ConfigError

Source = Mapping[str, Any] | str | Path | Sequence[str] | None
"""What a configuration can be given as; omegaconf's are mappings, too."""


class Given:
    """What was set, by dotted key.

    Args:
        source: A mapping, in which a key may have dots; the path of a YAML file; a list of `key.key=value`, whose
            values are YAML; None for nothing.

    Raises:
        ConfigError: When it has another form, or a file cannot be read.
    """

    def __init__(self, source: Source) -> None:
        leaves = list(_leaves(_read(source)))
        self.values: dict[str, Any] = {key.replace("+", ""): value for key, value in leaves}
        self.added = {key.replace("+", "") for key, _ in leaves if "+" in key}
        """What was written with a `+`: keys that verl's defaults do not have."""

    def get(self, key: str) -> Any:
        """Return what was set at `a.b.c`; None when nothing was."""
        return self.values.get(key)

    def has(self, key: str) -> bool:
        """Whether something was set at `a.b.c`, be it null."""
        return key in self.values

    def take(self, prefix: str) -> dict[str, Any]:
        """Take out what was set at a key and inside of it."""
        inside = [key for key in self.values if f"{key}.".startswith(f"{prefix}.")]
        return {key: self.values.pop(key) for key in inside}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of dotted keys as mappings in each other."""
    config = OmegaConf.create()
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    found: Any = OmegaConf.to_container(config)
    return dict(found)


def _read(source: Source) -> Mapping[str, Any]:
    try:
        match source:
            case None:
                config: Any = {}
            case Mapping():
                config = source
            case str() | Path():
                if Path(source).suffix not in (".yaml", ".yml"):
                    raise ConfigError(f"{source}: a configuration of verl is a file that ends in .yaml or .yml")
                config = OmegaConf.load(source)
            case _ if isinstance(source, Sequence) and all(isinstance(each, str) and "=" in each for each in source):
                config = OmegaConf.from_dotlist(list(source))
            case _:
                raise ConfigError(
                    "a configuration is a mapping, the path of a YAML file or a list of 'key.key=value', not "
                    f"{source!r}"
                )
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as exc:
        raise ConfigError(f"cannot read the configuration {source}: {exc}") from exc
    read = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    if not isinstance(read, Mapping):
        raise ConfigError(f"{source}: a configuration is a mapping of keys to values")
    return read


def _leaves(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
