"""What is wrong with the values of a config file, in words for whoever wrote it."""

from collections.abc import Iterable
from typing import Any

from pydantic_core import ErrorDetails

from lightning_core.config.files import ConfigFile
from lightning_core.registry import did_you_mean
from lightning_core.types import LLM, PromptTemplate, ProxyLLM

_RESOURCES = {kind.model_fields["resource_type"].default: kind for kind in (LLM, ProxyLLM, PromptTemplate)}


def explain(file: ConfigFile, fault: ErrorDetails, keys: Iterable[str]) -> str:
    """Say where a fault is, what is wrong, and what would be right.

    No value of a mapping is shown, nor one that is a secret.

    Args:
        file: What was validated.
        fault: One of the errors of pydantic.
        keys: What the file may have at its top.
    """
    place, kind = fault["loc"], None
    if place[0] == "initial_resources" and len(place) > 3:
        # pydantic names the kind of resource on its way; the file does not.
        kind, place = _RESOURCES.get(str(place[2])), (*place[:2], *place[3:])
    if fault["type"].startswith("union_tag_"):
        place = (*place, "resource_type")
    name, where = ".".join(map(str, place)), file.where(place)
    match fault["type"]:
        case "missing":
            return f"{where}: the key {name!r} is missing"
        case "extra_forbidden":
            return f"{where}: unknown key {name!r}{did_you_mean(place[-1], kind.model_fields if kind else keys)}"
        case "union_tag_not_found":
            return f"{where}: the key {name!r} is missing; it is one of {', '.join(_RESOURCES)}"
        case "union_tag_invalid":
            tag = fault["ctx"]["tag"]
            return f"{where}: {name} is {tag!r}; it is one of {', '.join(_RESOURCES)}{did_you_mean(tag, _RESOURCES)}"
        case "model_attributes_type":
            wanted = "it has to be a mapping, as in {resource_type: prompt_template, template: ...}"
        case _:
            wanted = fault["msg"]
    return f"{where}: {name} is {_shown(name, fault['input'])}: {wanted}"


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, str | int | float | None) or name.endswith("api_key"):
        return f"of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
