"""Where the spans of a run, a rollout or an attempt lie: their ids begin alike, and so they lie together."""

from typing import Any

from bson import MaxKey, MinKey


def of(key: str, rollout_id: str | None = None, attempt_id: str | None = None) -> dict[str, Any]:
    """Return the condition on `_id`.

    Args:
        key: The run, as it is called in the database.
        rollout_id: One of its rollouts; None for all.
        attempt_id: One of its attempts; None for all.
    """
    known = {"rollout": rollout_id, "attempt": attempt_id, "span": None}
    return {f"${test}": {"run": key, **_ends(known, bound)} for test, bound in (("gte", MinKey()), ("lte", MaxKey()))}


def _ends(known: dict[str, str | None], bound: Any) -> dict[str, Any]:
    return {name: bound if value is None else value for name, value in known.items()}
