"""Copying a store's file while a process writes to it, and making one smaller that no process uses."""

import os
import shutil
import sqlite3
import threading
from pathlib import Path

from lightning_core.errors import InvalidRequest, StoreError, StoreFull
from lightning_sqlite.database import UnusableFile, primary_code
from lightning_sqlite.schema import is_ours, version_of

TRIES = 20
"""How often a copy is made anew while the owner begins its write-ahead log anew."""

_WAL_HEADER_BYTES = 32

_descriptors: dict[tuple[int, int], int] = {}
_reading = threading.Lock()


def copy_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a store's file and its write-ahead log, also while a process writes to it.

    The copy has all that was acknowledged before it began. The source's owner is not asked, and does not wait.

    SQLite reads pages of the log in place of those of the database. Pages go from the log to the database while both
    are copied, and then they are in the copy of the log as well: it is copied last, and a log only grows. It does so
    until all of it is in the database. Then it is begun anew, with another header, and both are copied again.
    https://sqlite.org/fileformat2.html#the_write_ahead_log

    Args:
        source: The file of a store, which stays as it is.
        target: The new file, which only its owner can read.

    Raises:
        StoreError: When the copy cannot be made, or the source is written faster than it can be copied.
    """
    source = Path(source).resolve()
    log, log_copy = Path(f"{source}-wal"), Path(f"{target}-wal")
    try:
        for _ in range(TRIES):
            with _reading, open(target, "wb", opener=_private) as writer:  # a process has one place in the file
                before = _generation(source, log)
                with open(_descriptor(source), "rb", closefd=False) as reader:
                    reader.seek(0)
                    shutil.copyfileobj(reader, writer)
            log_copy.unlink(missing_ok=True)
            if log.exists():
                with open(log, "rb") as reader, open(log_copy, "wb", opener=_private) as writer:
                    shutil.copyfileobj(reader, writer)
            if before == _generation(source, log):
                return
    except OSError as exc:
        raise StoreError(f"cannot copy {source} to {target}: {exc}") from exc
    raise StoreError(f"{source} is written faster than it can be copied; try again when less goes on")


def compact(path: str | os.PathLike[str]) -> None:
    """Give the room of what was deleted back to the disk. It takes as much room again meanwhile.

    Raises:
        InvalidRequest: When there is no such file.
        StoreFull: When there is no room for it.
        StoreError: When a process uses the file, or it cannot be written.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidRequest(f"there is no store {path}")
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        if version_of(connection) == 0 or not is_ours(connection):
            raise UnusableFile(f"{path} is not a store")
        connection.execute("DELETE FROM source WHERE source NOT IN (SELECT source FROM span)")  # of dropped content
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as exc:
        kind = StoreFull if primary_code(exc) == sqlite3.SQLITE_FULL else StoreError
        raise kind(f"cannot compact {path}: {exc}") from exc
    finally:
        connection.close()


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read: a store has keys."""
    return os.open(path, flags, 0o600)


def _generation(source: Path, log: Path) -> object:
    try:
        with open(log, "rb") as file:
            header = file.read(_WAL_HEADER_BYTES)
    except FileNotFoundError:
        header = b""
    state = source.stat()
    return header or (state.st_size, state.st_mtime_ns)


def _descriptor(path: Path) -> int:
    """Open a database; once, and for good: a close would drop the locks of a store that this process has open."""
    state = path.stat()
    key = (state.st_dev, state.st_ino)
    if key not in _descriptors:
        _descriptors[key] = os.open(path, os.O_RDONLY)
    return _descriptors[key]
