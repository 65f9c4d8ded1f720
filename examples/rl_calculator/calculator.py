"""The tool: a calculator for one operation with two numbers."""

import operator
import re

_NUMBER = r"(-?\d{1,9}(?:\.\d{1,9})?)"
_EXPRESSION = re.compile(rf"\s*{_NUMBER}\s*([-+*/])\s*{_NUMBER}\s*")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def evaluate(expression: str) -> str:
    """Return what an expression such as `12 / 4` comes to, with at most two decimals.

    Raises:
        ValueError: When it is not an expression of two numbers, or divides by zero; says so.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise ValueError(f"an expression is like 12 / 4; got {expression}")
    left, sign, right = match.groups()
    if sign == "/" and float(right) == 0:
        raise ValueError(f"{expression} divides by zero")
    # Adding 0.0 makes a 0 of what is rounded to -0.
    return f"{round(_OPERATIONS[sign](float(left), float(right)), 2) + 0.0:.15g}"
