"""What can be wrong with a database file, and what SQLite's own errors mean to a caller."""

import sqlite3
from pathlib import Path

from lightning_core.errors import InvalidRequest, LightningError, StoreError, StoreFull


class StoreInUse(StoreError):
    """Another store has the file open; the message names its process."""


class UnusableFile(StoreError):
    """The file cannot be a store, or cannot be opened as one; it was left as it was."""


def explained(exc: Exception, path: Path) -> Exception:
    """Return the error that a caller understands, for one that carrying out an operation raised.

    Args:
        exc: What was raised. The store's own errors, and errors of other kinds, come back as they are.
        path: The database file.
    """
    if isinstance(exc, LightningError):
        return exc
    if isinstance(exc, UnicodeEncodeError):
        return InvalidRequest(f"a text that is not valid Unicode cannot be stored: {exc}")
    if isinstance(exc, OverflowError):
        return InvalidRequest(f"a number is too large to be stored: {exc}")
    if not isinstance(exc, sqlite3.Error):
        return exc
    code = primary_code(exc)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"{path}: there is no room left ({exc}), and nothing of this request was written; free space on its disk, "
            "or delete what has ended (delete_rollouts)"
        )
    if code == sqlite3.SQLITE_READONLY:
        return StoreError(f"{path} cannot be written any more: {exc}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(f"{path} is damaged: {exc}; go on with a copy that is not")
    return StoreError(f"{path}: {exc} ({exc.sqlite_errorname if code else type(exc).__name__})")


def primary_code(exc: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for an error that is not SQLite's but of Python's module."""
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    return 0 if code is None else code & 0xFF
