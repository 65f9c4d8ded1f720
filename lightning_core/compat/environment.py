"""The environment variables of agentlightning 0.3, and how its scripts read them."""

import os
from enum import Enum
from typing import TypeVar

_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
T = TypeVar("T")


class LightningEnvVar(Enum):
    """Variables, by the names that scripts use."""

    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    """Has no effect here."""
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    AGL_SERVER_PORT = "AGL_SERVER_PORT"


def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: T | None = None
) -> bool | T | None:
    """Return `override`, or else what the variable says, or else `fallback`.

    Raises:
        ValueError: When the variable is neither of the words for true and for false.
    """
    text = os.environ.get(env_var.value)
    if override is not None or text is None:
        return fallback if override is None else override
    if text.strip().lower() not in _WORDS:
        raise ValueError(f"{env_var.value} is {text!r}; it is one of {', '.join(_WORDS)}")
    return _WORDS[text.strip().lower()]


def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: T | None = None
) -> int | T | None:
    """Return `override`, or else the variable as a number, or else `fallback`.

    Raises:
        ValueError: When the variable is not a whole number.
    """
    text = os.environ.get(env_var.value)
    if override is not None or text is None:
        return fallback if override is None else override
    try:
        return int(text)
    except ValueError as exc:
        raise ValueError(f"{env_var.value} is {text!r}; it is a whole number") from exc


def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: T | None = None
) -> str | T | None:
    """Return `override`, or else the variable, or else `fallback`."""
    return os.environ.get(env_var.value, fallback) if override is None else override
