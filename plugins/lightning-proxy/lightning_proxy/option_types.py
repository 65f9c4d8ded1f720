"""Which values the options of a proxy and of a backend take."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lightning_core.errors import ConfigError
from lightning_proxy.paths import OpenPaths
from lightning_proxy.steering import Settings

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Sequence[str]: "a list of texts",
}

PROXY_OPTIONS: Mapping[str, Any] = {
    **get_type_hints(Settings),
    "port": int | None,
    "host": str | None,
    "key": str | None,
    "public_url": str | None,
    "capture_content": bool,
    "capture_tokens": bool,
}
"""The types of the options of `LLMProxy` that are plain values."""

_SECRET = frozenset({"key", "api_key", "headers"})
_FROM_ONE = frozenset(
    {
        *(
            "max_concurrent_calls",
            "max_head_bytes",
            "max_body_bytes",
            "max_incoming_bytes",
            "max_unsent_spans",
            "max_unsent_bytes",
        ),
        *("max_connections", "max_answer_bytes"),
    }
)
"""With none of these nothing would go on."""
_ABOVE_ZERO = frozenset(
    {"head_seconds", "body_seconds", "idle_seconds", "stall_seconds", "timeout", "stream_timeout", "connect_timeout"}
)


def check_options(values: Mapping[str, Any], types: Mapping[str, Any] = PROXY_OPTIONS) -> None:
    """Check the values of options. Types are strict: a text is no number, and 1 is not true.

    Args:
        values: By the options' names.
        types: What each is to be; one that is not among them is not checked.

    Raises:
        ConfigError: Names the option, what it is and what it takes; of a secret, not what it is.
    """
    for name, value in values.items():
        if name in types:
            _check(name, value, types[name])


def _check(name: str, value: Any, hint: Any) -> None:
    got = f"a {type(value).__name__}" if name in _SECRET else repr(value)
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as exc:
        kinds = [kind for kind in get_args(hint) if kind is not type(None)] if isinstance(hint, UnionType) else [hint]
        wanted = " or ".join(_WORDS.get(kind, "a mapping of texts") for kind in kinds)
        raise ConfigError(f"{name} is {got}; it is {wanted}") from exc
    if name == "allow_paths":
        OpenPaths(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if name == "port" and value > 65535:
        raise ConfigError(f"port is {got}; it is from 0 (the system chooses) to 65535")
    if name in _ABOVE_ZERO and not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {got}; it is above 0, and finite")
    least = 1 if name in _FROM_ONE else 0
    if not least <= value < float("inf"):
        raise ConfigError(f"{name} is {got}; it is {least} or more, and finite")
