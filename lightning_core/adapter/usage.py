"""What model calls used: how many they are, tokens and, where it was recorded, money."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

METADATA = "usage"
"""Under this name an attempt's metadata have what its calls used."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls used. Sums are over the calls that told; None where none did."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """In US dollars, as the spans tell it."""

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum."""
        return total_usage((self, other))


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Add up usages."""
    each = list(usages)
    return Usage(
        sum(one.calls for one in each),
        _sum_of_known(one.input_tokens for one in each),
        _sum_of_known(one.output_tokens for one in each),
        _sum_of_known(one.cost for one in each),
    )


def _sum_of_known(values: Iterable[Any]) -> Any:
    """Add up the numbers that are not None, the same in whatever order; None where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.fsum(known) if any(isinstance(value, float) for value in known) else sum(known)


_NONE = Usage()


def usage_in(metadata: Mapping[str, Any] | None) -> Usage:
    """Return what an attempt's metadata say that it used."""
    kept = (metadata or {}).get(METADATA)
    if not isinstance(kept, Mapping):
        return _NONE
    known = {name: kept.get(name) for name in ("input_tokens", "output_tokens", "cost")}
    return Usage(calls=int(kept.get("calls") or 0), **known)


def as_metadata(usage: Usage) -> dict[str, Any]:
    """Return what is kept of it in an attempt's metadata: what is known."""
    return {name: value for name, value in asdict(usage).items() if value is not None}
