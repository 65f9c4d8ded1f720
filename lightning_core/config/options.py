"""The options of a component: which there are, which types they take, and their defaults."""

import inspect
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from lightning_core.config.wanted import wanted_of
from lightning_core.superseded import superseded_options

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Options:
    """What the constructor of a component takes by name.

    Args:
        factory: A class, or a function; None for a ready instance, which refuses all options by itself.
    """

    def __init__(self, factory: Any) -> None:
        constructor: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
        self._namespace: dict[str, Any] = getattr(inspect.unwrap(constructor), "__globals__", {})
        self._superseded = superseded_options(factory)
        is_known = factory is not None
        try:
            parameters = [] if factory is None else list(inspect.signature(factory).parameters.values())
        except ValueError:  # some of those written in C do not tell
            parameters, is_known = [], False
        self.parameters = {parameter.name: parameter for parameter in parameters if parameter.kind in _NAMED}
        """By name."""
        kinds = {parameter.kind for parameter in parameters}
        self._takes_any = inspect.Parameter.VAR_KEYWORD in kinds or not is_known

    def takes(self, name: str) -> bool:
        """Whether an option of this name is taken; also where it cannot be known which are."""
        return self._takes_any or name in self.parameters or name in self._superseded

    def wrong_type(self, name: str, value: Any) -> str | None:
        """Say what the type of a value should be; None where it is right, or nothing is known of it.

        Types are checked as those of JSON are: a whole number is also a number, a text is none, a list is a tuple. No
        value of a config file is right where an object of a program is wanted, such as a client.
        """
        adapter = self._adapter(name)
        if adapter is None:
            return None
        try:
            text = json.dumps(value)
        except TypeError:  # a date, which YAML has and JSON does not
            return None
        try:
            adapter.validate_json(text, strict=True)
        except ValidationError as exc:
            return wanted_of(exc.errors())
        return None

    def defaults(self) -> Iterator[tuple[str, Any]]:
        """Give the names and the defaults of those options whose default can be said in a config file."""
        for name, parameter in self.parameters.items():
            if not name.startswith("_") and is_plain(parameter.default):
                yield name, parameter.default

    def _adapter(self, name: str) -> TypeAdapter[Any] | None:
        parameter = self.parameters.get(name)
        if parameter is None or parameter.annotation is inspect.Parameter.empty:
            return None
        try:
            hints = get_type_hints(SimpleNamespace(__annotations__={name: parameter.annotation}), self._namespace)
            return _adapter_of(hints[name])
        except (NameError, AttributeError, SyntaxError, TypeError, PydanticUserError, SchemaError):
            return None  # an annotation for type checkers only, or of a type that cannot be checked


def _adapter_of(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # of a model, which has a config of its own
        return TypeAdapter(annotation)


def is_plain(value: Any) -> bool:
    """Whether a value is made of nothing but what a config file can say."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    return value is None or type(value) in (bool, int, float, str)
