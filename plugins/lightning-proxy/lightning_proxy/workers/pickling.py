"""What is sent to workers, and what cannot be: an object of this process stays here."""

import io
import pickle
import types
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.errors import ConfigError
from lightning_proxy.backend import Backend
from lightning_proxy.workers.channel import Task


def packed_task(task: Task) -> bytes:
    """Return the task as bytes.

    Raises:
        ConfigError: When `redact` cannot be had in another process.
    """
    return _packed("redact", task)


def require_sendable(model_list: Sequence[Mapping[str, Any]]) -> None:
    """Check that workers can have a model list.

    Raises:
        ConfigError: Names the entry that they cannot, and why.
    """
    for number, entry in enumerate(model_list):
        name = f"model_list[{number}] ({entry.get('model_name')})"
        backend = entry.get("backend")
        if isinstance(backend, Backend):
            raise ConfigError(
                f"{name}: its backend is an object of this process ({type(backend).__name__}), and a proxy with "
                "several workers answers calls in others; leave workers out, or name the backend: an installed one, or "
                "'package.module:Class'"
            )
        _packed(name, entry)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__!r} is defined in the program itself")
        return NotImplemented


def _packed(what: str, value: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"{what} cannot be sent to the proxy's workers: {exc}; define it at the top level of a module that can be "
            "imported, or leave workers out"
        ) from exc
    return buffer.getvalue()
