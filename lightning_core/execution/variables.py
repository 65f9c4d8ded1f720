"""Arguments that may come from the environment."""

import os
from collections.abc import Sequence

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def text_of(variable: str, given: str | None, default: str) -> str:
    """Return what was given, else the variable where it is set and not empty, else the default."""
    return given if given is not None else os.environ.get(variable) or default


def choice_of(name: str, variable: str, given: str | None, default: str, choices: Sequence[str]) -> str:
    """Return one of some choices; see `text_of`.

    Raises:
        ValueError: When it is none of them.
    """
    value = text_of(variable, given, default)
    if value not in choices:
        source = name if given is not None else f"the variable {variable}"
        raise ValueError(f"{source} is {value!r}; it is one of {', '.join(choices)}")
    return value


def port_of(name: str, variable: str, given: int | None) -> int | None:
    """Return a port; None where none is given.

    Raises:
        ValueError: When it is no port.
    """
    text: object = given if given is not None else os.environ.get(variable) or None
    if text is None:
        return None
    source = name if given is not None else f"the variable {variable}"
    number = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text
    if type(number) is not int or not 0 <= number <= 65535:
        raise ValueError(f"{source} is {text!r}; it is a port, from 0 (the system chooses) to 65535")
    return number


def flag_of(variable: str, given: bool | None) -> bool | None:
    """Return a flag; None where none is given.

    Raises:
        ValueError: When the variable is neither true nor false.
    """
    text = os.environ.get(variable)
    if given is not None or not text:
        return given
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"the variable {variable} is {text!r}; it is one of {', '.join((*_TRUE, *_FALSE))}")
    return text.lower() in _TRUE
