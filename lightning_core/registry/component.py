"""What a component is, and the tables of names: kinds, aliases, and what ships where."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["algorithms", "stores", "tracers", "adapters", "runners", "strategies", "backends", "commands", "hooks"]
"""What a component is for."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are listed."""

GROUPS: Mapping[Kind, str] = {kind: f"lightning_core.{kind}" for kind in KINDS} | {"hooks": "lightning_core"}
"""The entry-point group of each kind. Plugins with hooks are in pluggy's group, which is named as the project is."""

SINGULAR: Mapping[Kind, str] = {
    "algorithms": "algorithm",
    "stores": "store",
    "tracers": "tracer",
    "adapters": "adapter",
    "runners": "runner",
    "strategies": "strategy",
    "backends": "backend",
    "commands": "command",
    "hooks": "hook plugin",
}
"""What one component of a kind is called in a message."""

ALIASES: Mapping[Kind, Mapping[str, str]] = {"strategies": {"shm": "local", "cs": "processes"}}
"""Other names of a component, per kind: alias -> name."""

SHIPS_IN: Mapping[Kind, Mapping[str, str]] = {
    "algorithms": {
        "apo": "lightning-apo",
        "verl": "lightning-verl",
        "grpo": "lightning-verl",
        "ppo": "lightning-verl",
        "rloo": "lightning-verl",
    },
    "stores": {"sqlite": "lightning-sqlite", "mongo": "lightning-mongo"},
    "tracers": {"agentops": "lightning-agentops", "weave": "lightning-weave"},
    "backends": {"litellm": "lightning-litellm"},
}
"""Which of our own distributions has a component, per kind: name -> distribution."""

State = Literal["ok", "blocked", "duplicate", "incompatible", "broken"]
"""How a component stands.

- `ok`: nothing is known against it. Before it was imported, that is not much.
- `blocked`: `AGL_PLUGINS_BLOCK` names it; it is as if it were not installed.
- `duplicate`: another distribution offers the same name of the same kind.
- `incompatible`: its distribution requires another version of the core than the one that is installed.
- `broken`: it was imported, and that failed, or what was found there is of another kind.
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
