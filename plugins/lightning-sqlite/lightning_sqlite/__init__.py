"""A store in an SQLite file: what it acknowledged survives the death of its process."""

from lightning_sqlite.backend import SqliteBackend
from lightning_sqlite.errors import StoreInUse, UnusableFile
from lightning_sqlite.store import SqliteLightningStore

__all__ = ["SqliteBackend", "SqliteLightningStore", "StoreInUse", "UnusableFile"]
