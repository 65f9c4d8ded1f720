"""A store in an SQLite file: what it acknowledged survives the death of its process."""

from lightning_sqlite.backend import SqliteBackend, SqliteLightningStore
from lightning_sqlite.database import StoreInUse, UnusableFile

__all__ = ["SqliteBackend", "SqliteLightningStore", "StoreInUse", "UnusableFile"]
