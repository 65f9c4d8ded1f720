"""What all parts of the facade share."""

from collections.abc import Callable

from lightning_core.errors import NotFound, StoreClosed
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.store.documents import Documents
from lightning_core.store.records import Records
from lightning_core.store.run_end import RunEnd
from lightning_core.store.waits import Waits
from lightning_core.store.watchdog import Watchdogs
from lightning_core.types import Attempt


class StorePart(LightningStore):
    """One part of the facade, which makes what is declared here."""

    _backend: StoreBackend
    _run_id: str
    _clock: Clock
    _documents: Documents
    _records: Records
    _waits: Waits
    _watchdogs: Watchdogs
    _run_end: RunEnd
    _view_of: "StorePart | None"
    """The store that this one is a view of; None where it is none."""
    _closed: bool

    def _check_open(self) -> None:
        if self._closed or (self._view_of is not None and self._view_of._closed):
            raise StoreClosed(f"the store of run {self._run_id} is closed")

    async def _look(self, *, gives_sign: Callable[[Attempt], bool] | None = None) -> None:
        """Check that the store is open, and end what is due, so that the caller sees it as it is now."""
        self._check_open()
        await self._records.expire(gives_sign=gives_sign)

    async def _check_resources(self, resources_ids: set[str | None]) -> None:
        for resources_id in resources_ids:
            if resources_id is not None and await self._documents.find("resources", resources_id) is None:
                raise NotFound(f"run {self._run_id} has no resources {resources_id!r}; add them first")
