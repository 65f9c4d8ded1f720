"""Whether options fit what they are for: the one check, by pydantic, of a signature's types.

pydantic is imported late: commands that only list components start without it.
"""

import difflib
import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from lightning_core.deprecated import OPTIONS
from lightning_core.errors import InvalidOptions

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be; None when none is like it."""
    text, known = str(name).lower(), {each.lower(): each for each in names}
    begin_alike = [each for each in known if each[:1] == text[:1]]  # 'gen' is in 'agentt', and is not meant
    near = difflib.get_close_matches(text, known, 1, 0.7) or difflib.get_close_matches(text, begin_alike, 1)
    return known[near[0]] if near else None


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the end of an error message, `. Did you mean 'x'?`; empty when nothing is near."""
    guess = nearest(name, names)
    return "" if guess is None else f". Did you mean {guess!r}?"


def check_options(
    label: str, options: Mapping[Any, Any], factory: Callable[..., Any], *more: Callable[..., Any]
) -> None:
    """Check options against the signature of what they are for; see `Options`.

    Raises:
        InvalidOptions: Names every option that does not fit, and what would fit.
    """
    if faults := Options(factory, *more).faults(label, options):
        raise InvalidOptions(label, faults)


def deprecated_options(factory: Any) -> frozenset[str]:
    """Return the options that a class, or a function, takes besides those of its signature."""
    constructor: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    options: frozenset[str] = getattr(constructor, OPTIONS, frozenset())
    return options


class Options:
    """What a constructor or a function takes by name.

    Args:
        factory: A class, or a function; None for a ready instance, of which nothing is known.
        more: What takes the options that `factory` takes as `**kwargs`.
    """

    def __init__(self, factory: Callable[..., Any] | None, *more: Callable[..., Any]) -> None:
        self.parameters: dict[str, inspect.Parameter] = {}
        """By name."""
        self._namespaces: dict[str, dict[str, Any]] = {}
        self._deprecated: set[str] = set()
        self._takes_any = factory is None
        for each in [] if factory is None else [factory, *more]:
            constructor: Any = each.__init__ if isinstance(each, type) else each  # type: ignore[misc]
            namespace = getattr(inspect.unwrap(constructor), "__globals__", {})
            self._deprecated |= deprecated_options(constructor)
            try:
                parameters = inspect.signature(each).parameters.values()
            except ValueError:  # some of those written in C do not tell
                self._takes_any = True
                continue
            self._takes_any |= not more and any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
            for parameter in parameters:
                if parameter.kind in _NAMED:
                    self.parameters.setdefault(parameter.name, parameter)
                    self._namespaces.setdefault(parameter.name, namespace)

    def faults(
        self, label: str, options: Mapping[Any, Any], *, supplied: Collection[str] | None = None
    ) -> dict[str, str]:
        """Say what is wrong with options: by the option's name, or by `""` for what is missing.

        Types are checked as those of JSON are: a whole number is also a number, a text is not, a list is also a tuple.
        Objects that JSON cannot say are not checked; they are the program's own.

        Args:
            label: What takes them, for the messages.
            options: By name.
            supplied: Names that get a value elsewhere; None where a missing option is not a fault.
        """
        takes = f"it takes: {', '.join(self.parameters) or 'none'}"
        faults = {}
        for name, value in options.items():
            if name in self.parameters:
                if errors := self._errors(name, value):
                    faults[name] = f"{label}: {_in_words(name, value, errors)}"
            elif not (self._takes_any or name in self._deprecated):
                faults[name] = f"{label} has no option {name!r}; {takes}{did_you_mean(name, self.parameters)}"
        if supplied is not None:
            required = [name for name, each in self.parameters.items() if each.default is inspect.Parameter.empty]
            if missing := [name for name in required if name not in options and name not in supplied]:
                faults[""] = f"{label} needs the option {', '.join(map(repr, missing))}; {takes}"
        return faults

    def defaults(self) -> Iterator[tuple[str, Any]]:
        """Give the names and the defaults of those options whose default can be said in a config file."""
        for name, parameter in self.parameters.items():
            if not name.startswith("_") and is_plain(parameter.default):
                yield name, parameter.default

    def _errors(self, name: str, value: Any) -> "list[ErrorDetails]":
        """Return what is wrong with a value; nothing where it fits, or nothing is known of it."""
        from pydantic import ValidationError

        try:
            text = json.dumps(value)
        except (TypeError, ValueError):
            return []
        if (adapter := self._adapter(name)) is None:
            return []
        try:
            adapter.validate_json(text, strict=True)
        except ValidationError as exc:
            return exc.errors()
        return []

    def _adapter(self, name: str) -> "TypeAdapter[Any] | None":
        from pydantic import PydanticUserError
        from pydantic_core import SchemaError

        annotation = self.parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            return None
        alone = SimpleNamespace(__annotations__={name: annotation})
        try:
            return _adapter_of(get_type_hints(alone, self._namespaces[name], include_extras=True)[name])
        except (NameError, AttributeError, SyntaxError, TypeError, PydanticUserError, SchemaError):
            return None  # an annotation for type checkers only, or of a type that cannot be checked


def _adapter_of(annotation: Any) -> "TypeAdapter[Any]":
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:  # of a model, which has a config of its own
        return TypeAdapter(annotation)


def _in_words(name: str, value: Any, errors: "list[ErrorDetails]") -> str:
    places = [tuple(_keys_of(value, error["loc"])) for error in errors]
    keys = max(places, key=len)
    if all(place == keys[: len(place)] for place in places):  # of a union, the kind that fits the furthest
        errors = [error for error, place in zip(errors, places, strict=True) if place == keys]
    else:
        keys = ()
    if not keys:
        return f"{name} is {show_value(name, value)}; {wanted_of(errors)}"
    inner = functools.reduce(lambda of, key: of[key], keys, value)
    return f"{'.'.join(map(str, (name, *keys)))} is {kind_of(inner)}; {wanted_of(errors)}"


def _keys_of(value: Any, place: Iterable[Any]) -> Iterator[Any]:
    """Follow pydantic's place of a fault into a value, without what it says of the types that it tried."""
    for key in place:
        if (isinstance(value, Mapping) and key in value) or (isinstance(value, list | tuple) and isinstance(key, int)):
            yield key
            value = value[key]


def is_plain(value: Any) -> bool:
    """Whether a value is made of nothing but what a config file can say."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    return value is None or type(value) in (bool, int, float, str)


def show_value(name: str, value: Any) -> str:
    """Return a value as it can stand in a message: not long, and without a secret."""
    from lightning_core.secrets import hide_in_field

    hidden = hide_in_field(name.rpartition(".")[-1], value) if isinstance(value, str | int | float) else value
    if not isinstance(value, str | int | float | None) or hidden != value:
        return kind_of(value)
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def kind_of(value: Any) -> str:
    """Return what a value is, in the words of a config file where these have one."""
    return _KINDS.get(type(value), f"of type {type(value).__name__}")


_KINDS = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


_IS_TO_BE = "it has to be "

_WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
    "none_required": "null",
    "finite_number": "a finite number",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
"""By the kind of a fault of pydantic, which has the values in braces."""

_FOR_PROGRAMS = dict.fromkeys(
    ("needs_python_object", "is_instance_of", "callable_type"), "only a program can give it, or it is left out"
)
"""For a type that no config file can say."""


def wanted(fault: "ErrorDetails") -> str:
    """Say what would be right where pydantic found a fault."""
    kind = fault["type"]
    if kind in _FOR_PROGRAMS:
        return _FOR_PROGRAMS[kind]
    if kind in _WANTED:
        limits = {key: f"{each:g}" if isinstance(each, float) else each for key, each in fault.get("ctx", {}).items()}
        return _IS_TO_BE + _WANTED[kind].format(**limits)
    if kind == "missing":
        return "the key is missing"
    if kind == "extra_forbidden":
        return "there is no such key"
    return re.sub("^(Input|String) should ", "it has to ", fault["msg"].removeprefix("Value error, "))


def wanted_of(faults: "Iterable[ErrorDetails]") -> str:
    """Say what would be right where a value is none of several types: each fault tells of one of them."""
    words = dict.fromkeys(map(wanted, faults))
    kinds = [each.removeprefix(_IS_TO_BE) for each in words if each.startswith(_IS_TO_BE)]
    others = [each for each in words if not each.startswith(_IS_TO_BE)]
    return " or ".join([*([_IS_TO_BE + " or ".join(kinds)] if kinds else []), *others])
