"""The SQLite store and the memory store under the same random calls, reopened now and then."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from lightning_sqlite import SqliteLightningStore

from lightning_core.store import LightningStore
from lightning_core.testing import FakeClock
from lightning_core.testing.store_pair import RUN_ID, StorePair


class SqliteAndMemory(StorePair):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="lightning-sqlite-")
        self.path = Path(self.folder.name) / "store.sqlite"

    def make_store(self, *, clock: FakeClock, run_id: str, lease_seconds: float) -> LightningStore:
        return SqliteLightningStore(self.path, clock=clock, run_id=run_id, lease_seconds=lease_seconds)

    async def reopen_store(
        self, store: LightningStore, *, clock: FakeClock, lease_seconds: float
    ) -> LightningStore | None:
        await store.aclose()
        return SqliteLightningStore(self.path, clock=clock, run_id=RUN_ID, lease_seconds=lease_seconds)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestSqliteAndMemory = pytest.mark.slow(SqliteAndMemory.TestCase)
TestSqliteAndMemory.settings = settings(
    max_examples=25, stateful_step_count=50, derandomize=True, database=None, deadline=None
)
