"""How a proxy of several workers stands: what they count, added up."""

from collections.abc import Sequence
from typing import Any


def sum_of(statuses: Sequence[dict[str, Any]], *, weight_version: str | None, is_paused: bool) -> dict[str, Any]:
    """Return one status of those of all workers. A replica is up where any worker can reach it."""
    whole: dict[str, Any] = {}
    for status in statuses:
        for name, value in status.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                whole[name] = whole.get(name, 0) + value
    whole["is_paused"] = is_paused
    whole["weight_version"] = weight_version
    listed = [status["replicas"] for status in statuses]
    whole["replicas"] = [
        {
            **each[0],
            "in_flight": sum(replica["in_flight"] for replica in each),
            "is_up": any(replica["is_up"] for replica in each),
        }
        for each in zip(*listed, strict=False)
    ]
    return whole
