"""jinja for templates that a model may have written: no way out of them, and a bound on the memory that they take.

The time that a template takes is not bounded.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SIZE = 10_000_000
"""How many characters one rendering may make on its way to the prompt; an item of a list counts as 10."""

_ITEM_SIZE = 10
_WIDENING = frozenset({"batch", "center", "slice"})
"""Filters of which a number says how large the result is."""
_MULTIPLYING = frozenset({"format", "indent", "join", "replace", "round", "tojson", "urlize", "wordwrap"})
"""Filters whose result has an argument, or a width that is one, in many places."""
_METHODS = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "index", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper"),
        *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper"),
        *("istitle", "is_integer", "bit_length"),
    }
)
"""The methods of texts and numbers whose result is not larger than the value."""
_REFUSED = {
    nodes.AssignBlock: "{% set %} that ends with {% endset %}",
    nodes.Block: "{% block %}",
    nodes.CallBlock: "{% call %}",
    nodes.FilterBlock: "{% filter %}",
    nodes.Macro: "{% macro %}",
}
"""Statements that gather text before anything can look at its size."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, finalize=self._measured)
        self._made = 0
        self.globals.pop("lipsum")
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}

    def parsed(self, template: str) -> nodes.Template:
        """Read a template.

        Raises:
            TemplateSyntaxError: When it is malformed, or has a statement that gathers text.
        """
        tree = self.parse(template)
        for node in tree.find_all((*_REFUSED, nodes.For)):
            if not isinstance(node, nodes.For) or node.recursive:
                what = _REFUSED.get(type(node), "recursive {% for %}")
                raise TemplateSyntaxError(f"a prompt template cannot have a {what}; write it out", node.lineno)
        _Joining().visit(tree)
        return tree.set_environment(self)  # type: ignore[return-value]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "+" and not numbers:
            self._make(_size(left) + _size(right))
        elif operator == "*" and not numbers:
            raise ValueError("a text or a list cannot be multiplied in a prompt template")
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            self._check(left.bit_length() * right.bit_length())
        elif operator == "**" or (operator == "%" and not numbers):
            raise ValueError(f"the operator {operator} cannot be used in a prompt template")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *arguments: Any, **options: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int | float) and obj.__name__ not in _METHODS:
            kind = type(owner).__name__
            raise SecurityError(f"the method {obj.__name__!r} of a {kind} cannot be called in a prompt template")
        return super().call(context, obj, *arguments, **options)

    def wrap_str_format(self, value: Any) -> None:
        if super().wrap_str_format(value) is not None:
            raise SecurityError(f"the method {value.__name__!r} of a text cannot be called; use the filter 'format'")

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Look at the size of what goes into a filter, and count what comes out of it."""
        wants = getattr(function, "jinja_pass_arg", None)  # the context or the environment, before the value
        place = 0 if wants is None else 1

        def bounded(*arguments: Any, **options: Any) -> Any:
            *passed, value = arguments[: place + 1]
            rest = arguments[place + 1 :]
            if isinstance(value, Iterator):
                value = list(value)
            size = _size(value)
            if name in _WIDENING or name in _MULTIPLYING:
                others = [_weight(each) for each in (*rest, *options.values())]
                if name == "format":
                    others += [int(digits) for digits in re.findall(r"\d+", str(value))]
                largest = max(others, default=0)
                self._check(size + largest * (1 if name in _WIDENING else _places(name, value, size, rest)))
            result = function(*passed, value, *rest, **options)
            if isinstance(result, str | list | tuple | dict):
                self._make(len(result))
            return result

        if wants is not None:
            bounded.jinja_pass_arg = wants  # type: ignore[attr-defined]
        return bounded

    def _measured(self, value: Any) -> Any:
        """Refuse what would be of any size once it is text, such as a list of lists of lists."""
        self._check(_size(value))
        return value

    def _make(self, size: int) -> None:
        self._check(size)
        self._made += size

    def _check(self, size: int) -> None:
        if self._made + size > MAX_SIZE:
            raise ValueError(f"a prompt template makes at most {MAX_SIZE:,} characters on its way to the prompt")


class _Joining(NodeTransformer):
    """Turns `a ~ b` into `[a, b] | join`, whose size is looked at."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        parts, separator = nodes.List(node.nodes, lineno=node.lineno), nodes.Const("", lineno=node.lineno)
        return nodes.Filter(parts, "join", [separator], [], None, None, lineno=node.lineno)


def _size(value: Any) -> int:
    """Return about how many characters a value has as text; counts no further than it has to."""
    size = 0
    left: list[tuple[Collection[Any], int]] = [((value,), 0)]
    while left:
        items, depth = left.pop()
        size += _ITEM_SIZE * depth * len(items)
        for each in items:
            if size > MAX_SIZE:
                return size
            if isinstance(each, str | bytes):
                size += len(each)
            elif isinstance(each, int):
                size += each.bit_length() // 3
            elif isinstance(each, Mapping):
                left += ((each.keys(), depth + 1), (each.values(), depth + 1))
            elif isinstance(each, Collection) and not isinstance(each, Undefined):
                left.append((each, depth + 1))
    return size


def _places(name: str, value: Any, size: int, rest: Sequence[Any]) -> int:
    """Return in how many places of a filter's result an argument may stand."""
    if name == "join" and isinstance(value, Collection):
        return len(value)
    if name == "indent" and isinstance(value, str):
        return value.count("\n") + 1
    if name == "replace" and isinstance(value, str) and rest and isinstance(rest[0], str) and rest[0]:
        return value.count(rest[0])
    return max(size, 1)


def _weight(argument: Any) -> int:
    return abs(int(argument)) if isinstance(argument, int | float) else _size(argument)
