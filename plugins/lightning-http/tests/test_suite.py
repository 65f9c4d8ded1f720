"""The store over HTTP keeps every promise of a store."""

from collections.abc import AsyncIterator

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.testing import StoreSuite
from lightning_core.testing.clock import FakeClock


class TestStoreOverHttp(StoreSuite):
    @pytest.fixture(autouse=True)
    async def servers(self) -> AsyncIterator[None]:
        self._servers: list[LightningStoreServer] = []
        yield
        for server in self._servers:
            await server.stop()

    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        server = LightningStoreServer(InMemoryLightningStore(clock=clock, run_id=run_id))
        await server.start()
        self._servers.append(server)
        return LightningStoreClient(server.url, run_id=run_id, retry_seconds=2.0)
