"""What all requests to one server share."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from pydantic.dataclasses import dataclass as checked_dataclass

from lightning_core.errors import InvalidRequest
from lightning_core.store.base import LightningStore
from lightning_http.auth import Keys
from lightning_http.body import ConnectionLimits, Seconds
from lightning_http.metrics import Metrics

_MAX_VIEWS = 256
_RUN_ID = re.compile(r"[\x21-\x7e]{1,200}")


@checked_dataclass(frozen=True)
class Limits(ConnectionLimits):
    """How much one request may ask for."""

    max_wait_seconds: Seconds = 300.0
    """The longest that a request waits; its answer then says that it has to be asked again."""


@dataclass
class Service:
    """A store that is served.

    Args:
        store: The store.
        keys: Who may do what.
        limits: How much one request may ask for.
        local_only: Whether only this machine is meant to ask, without a key: then a browser must not be talked into
            asking under another name.
        cors_allow_origins: The web pages of other sites that may ask, by their origins.
    """

    store: LightningStore
    keys: Keys
    limits: Limits
    local_only: bool
    cors_allow_origins: Collection[str] = ()
    metrics: Metrics = field(default_factory=Metrics)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no more claims are given."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is waited for any more."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each report on an attempt, so that `drain` looks again."""
    hurries: bool = False
    """Whether running attempts are not waited for any more."""
    _views: OrderedDict[str, LightningStore] = field(default_factory=OrderedDict)

    def view(self, run_id: str | None) -> LightningStore:
        """Return the store as one run sees it; None for the run of the store itself.

        Raises:
            InvalidRequest: When it cannot be a run's id.
        """
        if run_id is None or run_id == self.store.run_id:
            return self.store
        view = self._views.get(run_id)
        if view is None:
            if not _RUN_ID.fullmatch(run_id):
                raise InvalidRequest(f"{run_id!r} cannot be a run's id; it has 1 to 200 printable ASCII characters")
            view = self._views[run_id] = self.store.for_run(run_id)
            if len(self._views) > _MAX_VIEWS:
                # Requests that still use it keep it alive.
                self._views.popitem(last=False)
        self._views.move_to_end(run_id)
        return view

    def views(self) -> list[LightningStore]:
        """Return the store as all runs see it that were asked about lately."""
        return [self.store, *self._views.values()]
