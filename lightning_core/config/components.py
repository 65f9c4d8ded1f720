"""From what a config file says of a component to the component."""

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.adapter import TraceAdapter
from lightning_core.algorithm import Algorithm
from lightning_core.config.faults import shown
from lightning_core.config.files import ConfigFile, Place
from lightning_core.config.imports import raised_at
from lightning_core.config.model import COMPONENTS, Config
from lightning_core.config.options import Options
from lightning_core.errors import ConfigError, InvalidComponent, RegistryError
from lightning_core.execution import ExecutionStrategy
from lightning_core.registry import default_registry, did_you_mean, load_object
from lightning_core.registry.building import is_factory, require_buildable
from lightning_core.runner import Runner
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer

EXPECTED: dict[str, type[Any]] = {
    "algorithm": Algorithm,
    "store": LightningStore,
    "tracer": Tracer,
    "adapter": TraceAdapter,
    "runner": Runner,
    "strategy": ExecutionStrategy,
}
"""What each component has to be, by its key."""

GIVEN = {"runner": {"tracer", "max_rollouts", "reward"}, "strategy": {"n_runners"}}
"""The options that the trainer itself gives, by the component's key."""


def check_components(file: ConfigFile) -> tuple[dict[str, Options], list[str]]:
    """Find each component and check its options against what it takes. Nothing is built.

    Returns:
        What each takes, by its key; and all that is wrong, but for what is no component at all.
    """
    options: dict[str, Options] = {}
    faults: list[str] = []
    for key in COMPONENTS:
        spec = file.values.get(key, Config.model_fields[key].default)
        if not isinstance(spec, str | dict):
            continue
        try:
            options[key], wrong = _check(file, key, spec)
        except RegistryError as exc:
            faults.append(f"{file.where((key,))}: {key}: {exc}{raised_at(file, exc)}")
        else:
            faults += wrong
    return options, faults


def build_component(file: ConfigFile, config: Config, key: str) -> Any:
    """Build a component.

    Raises:
        ConfigError: When it refuses an option, or misses one.
    """
    spec = getattr(config, key)
    try:
        return default_registry().build(COMPONENTS[key], spec, expected=EXPECTED[key])
    except RegistryError as exc:
        raise ConfigError(f"{file.where((key,))}: {key}: {exc}{raised_at(file, exc)}") from exc
    except ValueError as exc:
        raise ConfigError(f"{file.where(place_of(str(exc), config, (key,)))}: {key}: {exc}") from exc


def place_of(message: str, config: Config, keys: tuple[str, ...] = ()) -> Place:
    """Return the place that a message about a value begins with, as far as it can be told.

    Args:
        message: Such as `n_epochs is 0; ...`, or `initial_resources: main_prompt: ...`.
        config: What the message is about.
        keys: The components that it may be about; where it is one, that is its place at the least.
    """
    name = message.partition(" ")[0].rstrip(":")
    for key in keys:
        spec = getattr(config, key)
        if isinstance(spec, Mapping) and name in spec:
            return (key, name)
    if len(keys) == 1:
        return keys
    return tuple(message.split(": ")[:-1]) if message.startswith(f"{name}: ") else (name,)


def _check(file: ConfigFile, key: str, spec: str | dict[str, Any]) -> tuple[Options, list[str]]:
    kind = COMPONENTS[key]
    name = spec if isinstance(spec, str) else spec.get("name")
    if not isinstance(name, str):
        raise InvalidComponent(
            f"it is a mapping without a string under 'name' (its keys: {', '.join(map(repr, spec)) or 'none'}); "
            "it has to be as in {name: baseline, n_epochs: 2}"
        )
    source = load_object(name) if ":" in name else default_registry().load(kind, name)
    label = f"{key} {name!r}"
    require_buildable(label, source, EXPECTED[key])
    options = Options(source if is_factory(source) else None)
    given = {} if isinstance(spec, str) else {option: value for option, value in spec.items() if option != "name"}
    return options, list(option_faults(file, key, label, options, given))


def option_faults(file: ConfigFile, key: str, label: str, options: Options, given: Mapping[str, Any]) -> Iterator[str]:
    """Say of each option what is wrong with it, if anything is: it is not taken, or has a value of another type."""
    for option, value in given.items():
        where = file.where((key, option))
        if not options.takes(option):
            takes = f"it takes: {', '.join(options.parameters) or 'none'}"
            yield f"{where}: {label} has no option {option!r}; {takes}{did_you_mean(option, options.parameters)}"
        elif (wanted := options.wrong_type(option, value)) is not None:
            yield f"{where}: {key}.{option} is {shown(option, value)}: {wanted}"
