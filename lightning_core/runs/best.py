"""The best resources of a run, as a file without keys."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lightning_core.errors import RunFolderError
from lightning_core.logs.secrets import without_secrets
from lightning_core.runs.atomic import write_atomically
from lightning_core.types import LLM, NamedResources, Resource

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


def write_best(path: Path, resources: NamedResources) -> None:
    """Write resources.

    Raises:
        RunFolderError: When they cannot be written.
    """
    write_atomically(path, json.dumps(resources_record(resources), indent=2, ensure_ascii=False) + "\n")


def resources_record(resources: NamedResources) -> dict[str, dict[str, Any]]:
    """Return resources as JSON has them, without keys and the values of headers."""
    return {name: _without_secrets(resource) for name, resource in resources.items()}


def read_best(path: Path, initial: NamedResources | None = None) -> NamedResources | None:
    """Read resources; None where there are none.

    Args:
        path: The file.
        initial: Gives back to each what the file does not have, the resource of the same name.

    Raises:
        RunFolderError: When the file is damaged.
    """
    try:
        resources = _RESOURCES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise RunFolderError(f"cannot read {path}: {exc.strerror}") from exc
    except ValidationError as exc:
        raise RunFolderError(f"{path} is damaged: {exc.errors()[0]['msg']}; remove it") from exc
    for name, resource in resources.items():
        first = (initial or {}).get(name)
        if isinstance(resource, LLM) and isinstance(first, LLM):
            resource.api_key = first.api_key
            if resource.sampling_parameters == without_secrets("sampling_parameters", first.sampling_parameters):
                resource.sampling_parameters = first.sampling_parameters
    return resources


def _without_secrets(resource: Resource) -> dict[str, Any]:
    record = resource.model_dump(mode="json", exclude={"api_key"})
    if "sampling_parameters" in record:
        record["sampling_parameters"] = without_secrets("sampling_parameters", record["sampling_parameters"])
    return record
