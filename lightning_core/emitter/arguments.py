"""The arguments of a call, as attributes of its span."""

import inspect
from collections.abc import Callable
from typing import Any

from lightning_core.emitter.attributes import describe

_RECEIVERS = ("self", "cls")


def readable_signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return what parameters a function has; None where nobody can tell, as for some functions written in C."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def input_attributes(
    prefix: str, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Describe what a function is called with, by the names of its parameters, defaults included.

    Where the signature is not known, or the call does not fit it, the names are `args.0` and on, and `kwargs.NAME`.
    """
    try:
        if signature is None:
            raise TypeError
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return _positions(f"{prefix}.args", args) | (describe(f"{prefix}.kwargs", kwargs) if kwargs else {})
    bound.apply_defaults()
    attributes: dict[str, Any] = {}
    for position, (name, value) in enumerate(bound.arguments.items()):
        if position == 0 and name in _RECEIVERS:
            continue
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            attributes |= _positions(f"{prefix}.{name}", value)
        else:
            attributes |= describe(f"{prefix}.{name}", value)
    return attributes


def _positions(prefix: str, values: tuple[Any, ...]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for position, value in enumerate(values):
        attributes |= describe(f"{prefix}.{position}", value)
    return attributes
