"""From the flat attributes of a span back to nested data."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def nested(attributes: Mapping[str, Any], *prefixes: str) -> Any:
    """Collect what stands under the first of these prefixes that the attributes have.

    `{"p.0.role": "user", "p.0.content": "hi"}` gives `[{"role": "user", "content": "hi"}]` for `p`. Names that count
    from 0 without a gap become a list, others a dict.

    Returns:
        A new dict or list, the plain value where the prefix itself is an attribute, or None.
    """
    for prefix in prefixes:
        start, cut = f"{prefix}.", len(prefix) + 1
        flat = [(name[cut:], value) for name, value in attributes.items() if name.startswith(start)]
        if flat:
            return unflatten(flat)
        if prefix in attributes:
            return attributes[prefix]
    return None


def unflatten(flat: Iterable[tuple[str, Any]]) -> Any:
    """Nest names at their dots. A name that is both a value and a prefix keeps what stands under it."""
    branches: dict[str, dict[str, Any]] = {"": {}}
    for name, value in flat:
        prefix, _, last = name.rpartition(".")
        if prefix not in branches:
            _add_branch(branches, prefix)
        branches[prefix][last] = value
    nest: Any = None
    # The root comes first and each branch after what it hangs on, so from the end on each is whole when it is hung up.
    for prefix, branch in reversed(branches.items()):
        nest = _counted(branch) if "0" in branch else branch
        if prefix:
            above, _, last = prefix.rpartition(".")
            branches[above][last] = nest
    return nest


def _add_branch(branches: dict[str, dict[str, Any]], prefix: str) -> None:
    missing = [prefix]
    while (above := missing[-1].rpartition(".")[0]) not in branches:
        missing.append(above)
    for name in reversed(missing):
        branches[name] = {}


def _counted(branch: dict[str, Any]) -> Any:
    """Return a list where the names count from 0 without a gap."""
    positions = [str(position) for position in range(len(branch))]
    return [branch[position] for position in positions] if branch.keys() == set(positions) else branch


def entries(value: Any) -> list[Any]:
    """Return the items of a list, or of a dict whose names are positions; gaps and other names are left out."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return [value[name] for name in sorted((name for name in value if str(name).isdigit()), key=int)]
    return []


def decoded(value: Any) -> Any:
    """Return what a text of JSON says; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
