"""Options of agentlightning 0.3 that have another name by now, or no effect: they are taken, with a warning."""

import functools
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec

P = ParamSpec("P")

_NONE: Mapping[str, Any] = MappingProxyType({})
OPTIONS = "__deprecated_options__"
"""The attribute of a constructor that has the options which it takes besides those of its signature."""


def deprecated(
    *,
    renamed: Mapping[str, str] = _NONE,
    without_effect: Mapping[str, str] = _NONE,
    converted: Mapping[str, tuple[str, Callable[[Any], Any]]] = _NONE,
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Let a constructor take options that its signature does not have any more.

    Each of them, unless it is None, gives a DeprecationWarning at the line that calls the constructor.

    Args:
        renamed: Former name -> name. The value is passed on under the new name, unless that one is given, too.
        without_effect: Name -> why there is no effect, and what to do instead. What was given is an attribute.
        converted: Former name -> name, and what makes its value of the former one.
    """

    def decorate(constructor: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(constructor)
        def construct(*args: Any, **options: Any) -> None:
            owner = type(args[0]).__name__
            for old, (new, convert) in {**{old: (new, None) for old, new in renamed.items()}, **converted}.items():
                value = options.pop(old, None)
                if value is not None:
                    ignored = f", which is given too, so {old} is ignored" if options.get(new) is not None else ""
                    _warn(f"{owner}({old}=) is deprecated; use {new}={ignored}")
                    if options.get(new) is None:
                        options[new] = value if convert is None else convert(value)
            kept = {name: options.pop(name) for name in without_effect if name in options}
            for name, value in kept.items():
                if value is not None:
                    _warn(f"{owner}({name}=) has no effect: {without_effect[name]}; leave it out")
            constructor(*args, **options)
            for name, value in kept.items():
                if not hasattr(args[0], name):
                    setattr(args[0], name, value)

        setattr(construct, OPTIONS, frozenset({*renamed, *converted, *without_effect}))
        return construct

    return decorate


def _warn(message: str) -> None:
    # At the caller of the constructor, three frames up.
    warnings.warn(message, DeprecationWarning, stacklevel=3)
