"""What a value should be, in words for whoever wrote it."""

from collections.abc import Iterable

from pydantic_core import ErrorDetails

IS_TO_BE = "it has to be "

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


def wanted(fault: ErrorDetails) -> str:
    """Say what would be right where pydantic found a fault."""
    kind = fault["type"]
    if kind in _FOR_PROGRAMS:
        return _FOR_PROGRAMS[kind]
    if kind in _WANTED:
        return IS_TO_BE + _WANTED[kind].format(**fault.get("ctx", {}))
    if kind == "missing":
        return "the key is missing"
    if kind == "extra_forbidden":
        return "there is no such key"
    return fault["msg"].removeprefix("Value error, ").replace("Input should ", "it has to ")


def wanted_of(faults: Iterable[ErrorDetails]) -> str:
    """Say what would be right where a value is none of several types: each fault tells of one of them."""
    words = dict.fromkeys(map(wanted, faults))
    kinds = [each.removeprefix(IS_TO_BE) for each in words if each.startswith(IS_TO_BE)]
    others = [each for each in words if not each.startswith(IS_TO_BE)]
    return " or ".join([*([IS_TO_BE + " or ".join(kinds)] if kinds else []), *others])
