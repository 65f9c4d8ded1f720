"""A file that a server owns, and that others reach over HTTP, keeps what has to outlive the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import LightningStore
from lightning_core.testing import FakeClock
from lightning_core.testing.store.leases import LeaseBehaviour
from lightning_core.testing.store.requests import RequestBehaviour
from lightning_core.testing.store.runs import RunBehaviour


class TestSqliteOverHttp(LeaseBehaviour, RunBehaviour, RequestBehaviour):
    @pytest.fixture(autouse=True)
    async def served(self, tmp_path: Path) -> AsyncIterator[None]:
        self._path = tmp_path / "store.sqlite"
        self._served: list[tuple[LightningStoreServer, SqliteLightningStore]] = []
        yield
        await self._stop()

    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        store = SqliteLightningStore(self._path, clock=clock, run_id=run_id)
        server = LightningStoreServer(store)
        await server.start()
        self._served.append((server, store))
        return LightningStoreClient(server.url, run_id=run_id, retry_seconds=2.0)

    async def reopen_store(self, store: LightningStore, *, clock: FakeClock) -> LightningStore | None:
        await store.aclose()
        await self._stop()
        return await self.make_store(clock=clock, run_id=store.run_id)

    async def _stop(self) -> None:
        while self._served:
            server, store = self._served.pop()
            await server.stop()
            await store.aclose()
