"""From a class or a function, and options, to an instance."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lightning_core.errors import InvalidComponent
from lightning_core.registry.objects import did_you_mean
from lightning_core.superseded import superseded_options

T = TypeVar("T")

_NAMED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def require_buildable(label: str, source: object, expected: type) -> None:
    """Refuse what is no instance of `expected`, and cannot be called for one.

    Raises:
        InvalidComponent: When it is so. What a function returns is known only when it is called.
    """
    is_wrong_class = isinstance(source, type) and not issubclass(source, expected)
    if not isinstance(source, expected) and (is_wrong_class or not is_factory(source)):
        raise InvalidComponent(
            f"{label} is {in_words(source)}; it has to be an instance or a subclass of {expected.__name__}, "
            "or a function that returns an instance"
        )


def build_from(
    label: str, source: Any, expected: type[T], *, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> T:
    """Return `source` where it is a ready instance, else what it gives when it is called; see `Registry.build`.

    Raises:
        InvalidComponent: It is not an `expected`, or does not take the options.
    """
    require_buildable(label, source, expected)
    if isinstance(source, expected):
        if options:
            raise InvalidComponent(
                f"{label} is a ready {type(source).__name__} and takes no options; got {', '.join(map(repr, options))}"
            )
        return source
    built = source(**_arguments(label, source, options, defaults))
    if not isinstance(built, expected):
        raise InvalidComponent(f"{label} gave {in_words(built)}, which is no {expected.__name__}")
    return built


def is_factory(source: object) -> bool:
    """Whether `source` is called for an instance."""
    return isinstance(source, type | functools.partial) or inspect.isroutine(source)


def in_words(value: object) -> str:
    """Return what a value is, for a message; without its content, which may be a secret."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if value is None or isinstance(value, bool | int | float) else f"a {type(value).__name__}"


def path_of(source: Any) -> str:
    """Return where something is defined, as `package.module:name`; for an instance, where its class is."""
    plain = source.func if isinstance(source, functools.partial) else source
    if not hasattr(plain, "__qualname__"):
        plain = type(plain)
    return f"{plain.__module__}:{plain.__qualname__}"


def _arguments(
    label: str, factory: Callable[..., Any], options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Check options against what `factory` takes, and add the defaults that it takes."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some of those written in C do not tell
        return dict(options)
    named = {parameter.name: parameter for parameter in parameters if parameter.kind in _NAMED_PARAMETERS}
    takes_anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    accepted = superseded_options(factory)
    takes = f"it takes: {', '.join(named) or 'none'}"
    for option in options:
        if option not in named and option not in accepted and not takes_anything:
            raise InvalidComponent(f"{label} has no option {option!r}; {takes}{did_you_mean(option, named)}")
    arguments = {name: value for name, value in defaults.items() if name in named} | dict(options)
    missing = [name for name, parameter in named.items() if _is_required(parameter) and name not in arguments]
    if missing:
        raise InvalidComponent(f"{label} needs the option {', '.join(map(repr, missing))}; {takes}")
    return arguments


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty
