"""The conformance suite of stores, over a file of its own for every test."""

import shutil
from pathlib import Path

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import LightningStore
from lightning_core.testing import FakeClock, StoreSuite


class TestSqliteLightningStore(StoreSuite):
    path: Path

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.sqlite"

    async def make_store(self, *, clock: FakeClock, run_id: str) -> LightningStore:
        return SqliteLightningStore(self.path, clock=clock, run_id=run_id)

    async def reopen_store(self, store: LightningStore, *, clock: FakeClock) -> LightningStore | None:
        await store.aclose()
        return SqliteLightningStore(self.path, clock=clock, run_id=store.run_id)

    async def reopen_after_kill(self, store: LightningStore, *, clock: FakeClock) -> LightningStore | None:
        # An open store has its file locked.
        left = shutil.copytree(self.path.parent, self.path.parent / "left by a kill")
        return SqliteLightningStore(left / self.path.name, clock=clock, run_id=store.run_id)
