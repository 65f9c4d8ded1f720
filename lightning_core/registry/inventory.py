"""From entry points to components, each with how it stands as far as metadata tells."""

import importlib.metadata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import Distribution, EntryPoint

from lightning_core.registry.blocklist import BLOCK_VARIABLE, Blocklist
from lightning_core.registry.compatibility import CORE, misfit
from lightning_core.registry.component import GROUPS, KINDS, Component, Kind

_NO_ORIGIN = "an unknown distribution"


def installed_entry_points() -> list[EntryPoint]:
    """Return the entry points of all of our groups that are installed."""
    installed = importlib.metadata.entry_points()
    return [entry_point for group in GROUPS.values() for entry_point in installed.select(group=group)]


def take_inventory(entry_points: Iterable[EntryPoint], blocklist: Blocklist) -> dict[Kind, list[Component]]:
    """Return all components per kind, blocked ones too, sorted by name and distribution. Imports none of them."""
    kinds = {group: kind for kind, group in GROUPS.items()}
    origins: dict[Distribution | None, tuple[str, str, str | None]] = {}  # reads a whole METADATA file
    found: dict[Kind, list[Component]] = {kind: [] for kind in KINDS}
    for entry_point in entry_points:
        if (kind := kinds.get(entry_point.group)) is None:
            continue
        if entry_point.dist not in origins:
            origins[entry_point.dist] = _origin(entry_point.dist)
        distribution, version, problem = origins[entry_point.dist]
        value = entry_point.value.partition("[")[0].strip()
        component = Component(kind, entry_point.name, distribution, version, value)
        found[kind].append(_judged(component, problem, blocklist))
    blocklist.warn_of_idle_entries(component for components in found.values() for component in components)
    return {kind: _with_duplicates(kind, components) for kind, components in found.items()}


def _origin(distribution: Distribution | None) -> tuple[str, str, str | None]:
    """Return a distribution's name, its version, and how it does not fit this core."""
    if distribution is None:
        return _NO_ORIGIN, "", None
    name = distribution.name or _NO_ORIGIN  # an installation that was cut short has no metadata
    return name, distribution.version or "", misfit(distribution.requires or ())


def _judged(component: Component, problem: str | None, blocklist: Blocklist) -> Component:
    entry = blocklist.entry_against(component)
    if entry is not None:
        reason = f"{component} is blocked by {entry!r} in {BLOCK_VARIABLE}; take that out to use it"
        return replace(component, state="blocked", problem=reason)
    if problem is not None:
        reason = f"{component} {problem}; install versions that fit each other"
        return replace(component, state="incompatible", problem=reason)
    return component


def _with_duplicates(kind: Kind, components: list[Component]) -> list[Component]:
    ordered = sorted(dict.fromkeys(components), key=lambda each: (each.name, each.distribution))
    if kind == "hooks":  # all of them are told; nobody has to choose one by its name
        return ordered
    rivals: dict[str, list[Component]] = defaultdict(list)
    for component in ordered:
        if component.state == "ok":
            rivals[component.name].append(component)
    return [
        replace(component, state="duplicate", problem=_duplicate(rivals[component.name]))
        if component.state == "ok" and len(rivals[component.name]) > 1
        else component
        for component in ordered
    ]


def _duplicate(rivals: list[Component]) -> str:
    first, *others = rivals
    offers = " and by ".join(f"{each.origin} ({each.value})" for each in rivals)
    distributions = dict.fromkeys(each.distribution for each in rivals)
    blocks = [f"{BLOCK_VARIABLE}={name}" for name in distributions if name not in (CORE, first.name, _NO_ORIGIN)]
    block = f"block one of them ({' or '.join(blocks)})" if len(distributions) > 1 and blocks else ""
    path = f"give its path instead of its name: {others[-1].value!r}"
    return f"{str(first).partition(' of ')[0]} is offered by {offers}; {f'{block}, or {path}' if block else path}"
