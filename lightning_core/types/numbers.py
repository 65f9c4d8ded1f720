"""Integers as JSON has them: neither `true` nor a text is one, and 2.0 is."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Strict


def without_fraction(value: Any) -> Any:
    """Return an int for a float that has no fraction, and everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, Strict(), BeforeValidator(without_fraction)]
"""An int, or a float without a fraction."""
