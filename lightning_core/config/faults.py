"""What is wrong with the values of a config file, in words for whoever wrote it."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import ErrorDetails

from lightning_core.config.datasets import Hub
from lightning_core.config.files import ConfigFile, Place
from lightning_core.config.model import DATASETS
from lightning_core.registry import did_you_mean
from lightning_core.registry.options import show_value, wanted
from lightning_core.types import LLM, PromptTemplate, ProxyLLM, RolloutConfig

_RESOURCES = {kind.model_fields["resource_type"].default: kind for kind in (LLM, ProxyLLM, PromptTemplate)}

_MASKED = re.compile(r"\*{3}|\w+://\S*\*{3}\S*")
"""A secret, or a URL with one, that is not shown."""


def explain(file: ConfigFile, fault: ErrorDetails, keys: Iterable[str]) -> str:
    """Say where a fault is, what is wrong, and what would be right.

    No value of a mapping is shown, nor one that is a secret.

    Args:
        file: What was validated.
        fault: One of the errors of pydantic.
        keys: What the file may have at its top.
    """
    place, keys = _place_in_file(fault["loc"], keys)
    if fault["type"].startswith("union_tag_"):
        place = (*place, "resource_type")
    name, where = ".".join(map(str, place)), file.where(place)
    match fault["type"]:
        case "missing":
            return f"{where}: the key {name!r} is missing"
        case "extra_forbidden":
            return f"{where}: unknown key {name!r}{did_you_mean(place[-1], keys)}"
        case "union_tag_not_found":
            return f"{where}: the key {name!r} is missing; it is one of {', '.join(_RESOURCES)}"
        case "union_tag_invalid":
            tag = fault["ctx"]["tag"]
            return f"{where}: {name} is {tag!r}; it is one of {', '.join(_RESOURCES)}{did_you_mean(tag, _RESOURCES)}"
        case "model_attributes_type":
            words = "it has to be a mapping, as in {resource_type: prompt_template, template: ...}"
        case _:
            words = wanted(fault)
    return f"{where}: {name} is {show_value(name, fault['input'])}; {words}"


def hidden_values(file: ConfigFile) -> list[str]:
    """Say which values are missing because `***` stands in their place, as in what a dry run prints."""

    def walk(place: Place, value: Any) -> Iterator[Place]:
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from walk((*place, key), item)
        elif isinstance(value, str) and _MASKED.fullmatch(value):
            yield place

    def words(place: Place) -> str:
        name = ".".join(map(str, place))
        return (
            f"{file.where(place)}: {name} has '***' in place of a secret; set it, as in --set {name}=VALUE, or remove "
            "it where the environment has it"
        )

    return [words(place) for place in walk((), {k: v for k, v in file.values.items() if k not in DATASETS})]


def in_order(file: ConfigFile, faults: Iterable[str]) -> list[str]:
    """Return faults in the order of the file; first what has no line, last what was set over it."""

    def place(fault: str) -> tuple[bool, int]:
        line = re.match(re.escape(str(file.path)) + r":(\d+): ", fault)
        return not fault.startswith(str(file.path)), 0 if line is None else int(line[1])

    return sorted(faults, key=place)


def _place_in_file(place: Place, keys: Iterable[str]) -> tuple[Place, Iterable[str]]:
    """Return a place without the kinds that pydantic names on its way, and the keys that there may be there."""
    match place:
        case ("initial_resources", str() as name, str() as kind, *rest) if rest:
            return ("initial_resources", name, *rest), _RESOURCES[kind].model_fields
        case ("rollout_config", *_):
            return place, RolloutConfig.model_fields
        case (str() as key, "text" | "samples" | "mapping", *rest) if key in DATASETS:
            return (key, *rest), Hub.model_fields
    return place, keys
