"""What a callable looks like: agents and algorithms are made of functions, partials, methods and callable objects."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def name_of(function: Callable[..., Any]) -> str:
    """Return a name for messages: the function's own, or that of a callable object's class."""
    function = _unwrapped(function)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a call returns a coroutine, as far as one sees without calling.

    A plain function around a coroutine function, as decorators make it, does not show it.
    """
    function = _unwrapped(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # the method is meant


def is_given_by_name(parameter: inspect.Parameter) -> bool:
    """Tell whether `function(name=value)` reaches this very parameter."""
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def is_required(parameter: inspect.Parameter) -> bool:
    """Tell whether a call without a value for this parameter fails."""
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
