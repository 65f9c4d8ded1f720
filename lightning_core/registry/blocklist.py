"""Which components are treated as if they were not installed: `AGL_PLUGINS_BLOCK`."""

import logging
import os
import re
from collections.abc import Iterable

from lightning_core.registry.component import SHIPS_IN, Component
from lightning_core.registry.objects import did_you_mean

logger = logging.getLogger(__name__)

BLOCK_VARIABLE = "AGL_PLUGINS_BLOCK"
"""The environment variable that names what to block.

Its entries are separated by commas. Each is the name of a component (of whatever kind), `kind:name`, or the name of a
distribution, of which all components are blocked then: `agentops,stores:mongo,lightning-verl`.
"""


class Blocklist:
    """Entries that block components.

    Args:
        entries: As in `AGL_PLUGINS_BLOCK`; None to read them from there.
    """

    def __init__(self, entries: Iterable[str] | None = None) -> None:
        given = os.environ.get(BLOCK_VARIABLE, "").split(",") if entries is None else entries
        self._entries = [entry for entry in map(str.strip, given) if entry]
        self._by_name = {_normal(entry): entry for entry in self._entries}

    def entry_against(self, component: Component) -> str | None:
        """Return the entry that blocks a component; None when none does."""
        return next((self._by_name[name] for name in _names(component) if name in self._by_name), None)

    def warn_of_idle_entries(self, components: Iterable[Component]) -> None:
        """Log each entry that blocks nothing, for it may be misspelt.

        What one of our own distributions would offer may be blocked before it is installed.
        """
        if not self._entries:
            return
        known = {name for component in components for name in _names(component)}
        for kind, names in SHIPS_IN.items():
            for name, distribution in names.items():
                known |= {f"{kind}:{name}", name, distribution}
        for normal, entry in self._by_name.items():
            if normal not in known:
                logger.warning(
                    "lightning.block_without_effect entry=%r of %s: nothing that is installed has this name%s",
                    entry,
                    BLOCK_VARIABLE,
                    did_you_mean(normal, sorted(known)),
                )


def _names(component: Component) -> tuple[str, str, str]:
    kind, name = component.kind, component.name
    return _normal(f"{kind}:{name}"), _normal(name), _normal(component.distribution)


def _normal(name: str) -> str:
    """Write a name as package indexes do, so that `Lightning_APO` is `lightning-apo`."""
    return re.sub(r"[-_.]+", "-", name).lower()
