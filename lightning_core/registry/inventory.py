"""What is installed: the kinds of components, and from entry points to components, as far as metadata tells."""

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint
from typing import Literal, get_args

Kind = Literal[
    "algorithms",
    "stores",
    "tracers",
    "adapters",
    "runners",
    "strategies",
    "proxies",
    "backends",
    "agents",
    "graders",
    "environments",
    "loggers",
    "commands",
    "pages",
    "exports",
    "hooks",
]
"""What a component is for."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are listed."""

GROUPS: Mapping[Kind, str] = {kind: f"lightning_core.{kind}" for kind in KINDS} | {"hooks": "lightning_core"}
"""The entry-point group of each kind. Plugins with hooks are in pluggy's group, which is named as the project is."""

SINGULAR: Mapping[Kind, str] = {kind: re.sub("ies$", "ys", kind).removesuffix("s") for kind in KINDS} | {
    "hooks": "hook plugin"
}
"""What one component of a kind is called in a message."""

ALIASES: Mapping[Kind, Mapping[str, str]] = {
    "algorithms": {"fast": "baseline"},
    "strategies": {"shm": "local", "cs": "processes"},
    "commands": {"judge": "judge-check", "runner": "worker"},
}
"""Other names of a component, per kind: alias -> name."""

MEANT: Mapping[Kind, Mapping[str, str]] = {
    "commands": {
        **dict.fromkeys(("dashboard", "open", "view", "viewer"), "ui"),
        **dict.fromkeys(("history", "list", "ls", "status"), "runs"),
        **dict.fromkeys(("inspect", "log", "logs", "trace"), "show"),
        **dict.fromkeys(("fit", "optimize", "start"), "train"),
        **dict.fromkeys(("evaluate", "measure", "test"), "eval"),
        "create": "init",
        "new": "init",
        "diff": "compare",
        "continue": "resume",
        "server": "serve",
        "watch": "top",
    },
}
"""Words that are not names, per kind: what people type, and the name that an error asks for."""

State = Literal["ok", "duplicate", "broken"]
"""How a component stands.

- `ok`: nothing is known against it. Before it was imported, that is not much.
- `duplicate`: another distribution offers the same name of the same kind.
- `broken`: it was imported, and that failed.
"""


@dataclass(frozen=True, slots=True)
class Component:
    """A component that an installed distribution offers. Nothing of it was imported to know this."""

    kind: Kind
    name: str
    """What a person asks for it by."""
    distribution: str
    """The distribution that declares it."""
    version: str
    """That distribution's version."""
    value: str
    """Where it is, as `package.module:attribute`."""
    state: State = "ok"
    """How it stands, as far as metadata tells."""
    problem: str | None = None
    """What is wrong, and what to do about it; None when `state` is `ok`."""

    def __str__(self) -> str:
        return f"{SINGULAR[self.kind]} {self.name!r} of {self.origin}"

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip()


_NO_ORIGIN = "an unknown distribution"


def installed_entry_points() -> list[EntryPoint]:
    """Return the entry points of all of our groups that are installed."""
    installed = importlib.metadata.entry_points()
    return [entry_point for group in GROUPS.values() for entry_point in installed.select(group=group)]


def take_inventory(entry_points: Iterable[EntryPoint]) -> dict[Kind, list[Component]]:
    """Return all components per kind, sorted by name and distribution. Imports none of them.

    Args:
        entry_points: What there is; groups that are not ours are ignored.
    """
    kinds = {group: kind for kind, group in GROUPS.items()}
    origins: dict[Distribution | None, tuple[str, str]] = {}  # reads a whole METADATA file
    found: dict[Kind, list[Component]] = {kind: [] for kind in KINDS}
    for entry_point in entry_points:
        if (kind := kinds.get(entry_point.group)) is None:
            continue
        if entry_point.dist not in origins:
            origins[entry_point.dist] = _origin(entry_point.dist)
        distribution, version = origins[entry_point.dist]
        value = entry_point.value.partition("[")[0].strip()
        found[kind].append(Component(kind, entry_point.name, distribution, version, value))
    return {kind: _with_duplicates(kind, components) for kind, components in found.items()}


def _origin(distribution: Distribution | None) -> tuple[str, str]:
    """Return a distribution's name and its version."""
    metadata = None if distribution is None else distribution.metadata
    if distribution is None or not metadata:  # an installation that was cut short
        return _NO_ORIGIN, ""
    return metadata["Name"] or _NO_ORIGIN, metadata["Version"] or ""


def _with_duplicates(kind: Kind, components: list[Component]) -> list[Component]:
    ordered = sorted(dict.fromkeys(components), key=lambda each: (each.name, each.distribution))
    if kind == "hooks":  # all of them are called; none is chosen by its name
        return ordered
    rivals: dict[str, list[Component]] = defaultdict(list)
    for component in ordered:
        rivals[component.name].append(component)
    return [
        replace(component, state="duplicate", problem=_duplicate(rivals[component.name]))
        if len(rivals[component.name]) > 1
        else component
        for component in ordered
    ]


def _duplicate(rivals: list[Component]) -> str:
    first, *others = rivals
    offers = " and by ".join(f"{each.origin} ({each.value})" for each in rivals)
    return (
        f"{str(first).partition(' of ')[0]} is offered by {offers}; give its path instead of its name, as in "
        f"{others[-1].value!r}, or uninstall one of them"
    )
