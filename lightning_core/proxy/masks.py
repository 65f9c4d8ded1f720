"""Keys that are kept out of what is recorded, and out of what agents are told."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_core.proxy.model_list import Replica

_HIDDEN = b"***"
_VARIABLE = "os.environ/"
_SHORTEST_KEY = 8
"""What is shorter stands for none, such as `EMPTY`, and may be a part of any text."""


def without_keys_of(replica: Replica, said: bytes) -> bytes:
    """Return what a backend said without the keys that its entry of the model list has for it."""
    for key in _keys(replica.spec):
        if len(key) >= _SHORTEST_KEY:
            said = said.replace(key.encode(), _HIDDEN)
    return said


def _keys(entry: object) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        return
    backend = entry.get("backend")
    options: dict[str, Any] = {
        **(backend if isinstance(backend, Mapping) else {}),
        **entry.get("litellm_params", {}),
    }
    key, headers = options.get("api_key"), options.get("headers")
    if key is None and options.get("api_base") is None:
        key = f"{_VARIABLE}OPENAI_API_KEY"
    for given in (key, *(headers.values() if isinstance(headers, Mapping) else ())):
        if isinstance(given, str):
            yield os.environ.get(given.removeprefix(_VARIABLE), "") if given.startswith(_VARIABLE) else given
