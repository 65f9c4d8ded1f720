"""From values to JSON and back. NaN and infinities stay what they are, as Python's own JSON has them."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from lightning_core.errors import InvalidRequest
from lightning_core.texts import cut
from lightning_core.types import Span
from lightning_core.types.text import well_formed_value


def encode(value: Any) -> bytes:
    """Return JSON. Models may be anywhere in lists, mappings and other models.

    Raises:
        InvalidRequest: When JSON cannot hold it.
    """
    try:
        return to_json(_plain(value), inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"this cannot be sent as JSON: {exc}") from exc


def _plain(value: Any) -> Any:
    """Unfold models: the settings of a model would turn NaN into null, those of the call do not."""
    if isinstance(value, Span):
        # Everything else in a span is small and checked; a store answers with thousands of them.
        return {**value.__dict__, **value.__pydantic_extra__} if value.__pydantic_extra__ else value.__dict__
    if isinstance(value, BaseModel):
        return {name: _plain(item) for name, item in value.__dict__.items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()} if _has_models(value.values()) else value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value] if _has_models(value) else value
    return value


def _has_models(values: Any) -> bool:
    # What users put into a dict of theirs is plain already; a list may be one of models.
    return any(isinstance(item, BaseModel | list) for item in values)


def from_any_json(body: bytes) -> Any:
    """Return what JSON says, with U+FFFD for halves of surrogate pairs, which Python's own JSON writes and reads.

    Raises:
        ValueError: When it is not JSON, or is nested too deeply.
    """
    try:
        return from_json(body)
    except ValueError as exc:
        try:
            return well_formed_value(json.loads(body.decode()))
        except RecursionError:
            raise exc from None


def faults_of(exc: ValidationError, *place: str) -> list[dict[str, Any]]:
    """Return what is wrong with a value, each fault at its place below this one."""
    return [{**fault, "loc": (*place, *fault["loc"])} for fault in exc.errors(include_url=False)]


def in_words(fault: Mapping[str, Any]) -> str:
    """Say what is wrong with a value in one line: the place, what was there."""
    place = ".".join(map(str, fault["loc"])) or "it"
    got = "" if fault["type"] == "missing" else f" is {cut(repr(fault['input']), 200)}"
    return f"{place}{got}: {fault['msg']}"
