"""Values as JSON text and back, without loss: what JSON cannot hold is refused."""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from lightning_core.errors import InvalidRequest

_AS_THEY_ARE = (str, bool, int, float, type(None))


def dumped(value: Any) -> bytes:
    """Return JSON text for a value that is known to be JSON-like. NaN and the infinities are kept.

    Raises:
        InvalidRequest: For a text that is no valid Unicode, or a value that is nested too deeply (about 250 levels).
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError as exc:
        raise InvalidRequest(f"this cannot be kept as JSON: {exc}") from exc


def loaded(text: bytes) -> Any:
    """Return the value of JSON text, a new one each time."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)  # the fast one stops at a depth of 200


def plain(value: Any, what: str) -> Any:
    """Return a copy of a value as it will be read again: tuples are lists there, anything else is the same.

    Args:
        value: The value.
        what: What it is, for the error.

    Raises:
        InvalidRequest: For a value that JSON cannot hold; names the place.
    """
    try:
        copied = loaded(dumped(value))
    except ValueError:
        copied = None  # the walk says where and why
    if copied is not None and copied == value:
        return copied
    try:
        walked = _walked(value, what)
    except RecursionError as exc:
        raise InvalidRequest(f"{what} contains itself, or is nested too deeply to be kept as JSON") from exc
    return loaded(dumped(walked))


def _walked(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidRequest(f"{place} has the key {key!r}; in what a durable store keeps, keys are strings")
        return {str(key): _walked(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, _AS_THEY_ARE):
        raise InvalidRequest(
            f"{place} is of type {type(value).__name__}; a durable store keeps what JSON can hold: dicts, lists, "
            "strings, numbers, booleans and None"
        )
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"{place} is no valid Unicode: {exc}") from exc
    return value
