"""JSON, with what engines send beyond it."""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json


def parse(data: bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: When it is none.
    """
    try:
        return from_json(data)  # NaN, too, which engines say of log-probabilities
    except ValueError as exc:
        if b"\\u" not in data:
            raise
        try:  # half of a surrogate pair, which an engine sends when it cuts a text between two tokens
            return json.loads(data)
        except (ValueError, RecursionError):
            raise exc from None


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Read a JSON object; None for anything else."""
    try:
        value = parse(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def dump(value: Any) -> bytes:
    """Write JSON in UTF-8, without spaces."""
    try:
        return to_json(value)
    except (PydanticSerializationError, UnicodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def replace_surrogates(value: str) -> str:
    """Return a text without halves of surrogate pairs, which are not characters: UTF-8 cannot say them."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def text(value: Any) -> str:
    """Write JSON as a text."""
    return dump(value).decode()
