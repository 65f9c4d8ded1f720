"""Copying a store's file while a process writes to it, and making one smaller that no process uses."""

import errno
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

from lightning_core.errors import InvalidRequest, StoreError, StoreFull
from lightning_sqlite.database import UnusableFile, checked_path, primary_code, refuse_damage
from lightning_sqlite.schema import is_ours, version_of

TRIES = 20
"""How often a copy is brought up to date while the owner begins its write-ahead log anew."""

_WAL_HEADER_BYTES = 32
_BYTES_AT_ONCE = 1 << 20

_descriptors: dict[tuple[int, int], int] = {}


def back_up(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a store's file, also while a process writes to it.

    The copy has all that was acknowledged before it began. It is there as a whole or not at all, and only its owner
    can read it (mode 0600).

    Args:
        source: The file of a store, which stays as it is. Its owner is not asked, and does not wait.
        target: The new file.

    Raises:
        InvalidRequest: When there is no such source, or there is a target already.
        UnusableFile: When the source is not a store, or is damaged.
        StoreFull: When there is no room for the copy.
        StoreError: When the copy cannot be made, or the source is written faster than it can be copied.
    """
    source, target = checked_path(source).resolve(), checked_path(target)
    if not source.is_file():
        raise InvalidRequest(f"there is no store {source}")
    if os.path.lexists(target):
        raise InvalidRequest(f"{target} is there already, and a backup overwrites nothing; name a new file")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copy = Path(folder) / "store"
            _copy_unchanged(source, copy)
            _finish(copy, source)
            os.link(copy, target)  # unlike a rename, it overwrites nothing
    except sqlite3.Error as exc:
        code = primary_code(exc)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise UnusableFile(f"{source} is damaged: {exc}; no backup was made") from exc
        kind = StoreFull if code == sqlite3.SQLITE_FULL else StoreError
        raise kind(f"cannot copy {source} to {target}: {exc}") from exc
    except OSError as exc:
        kind = StoreFull if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreError
        raise kind(f"cannot copy {source} to {target}: {exc.strerror or exc}") from exc


def compact(path: str | os.PathLike[str]) -> None:
    """Give the room of what was deleted back to the disk. It takes as much room again meanwhile.

    Raises:
        InvalidRequest: When there is no such file.
        StoreFull: When there is no room for it.
        StoreError: When a process uses the file, or it cannot be written.
    """
    path = checked_path(path)
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


def _copy_unchanged(source: Path, copy: Path) -> None:
    """Copy the database and its write-ahead log, so that both belong together.

    SQLite reads pages of the log in place of those of the database. Pages go from the log to the database while both
    are copied, and then they are in the copy of the log as well: it is copied last, and a log only grows. It does so
    until all of it is in the database. Then it is begun anew, with another header, and changes are copied again.
    https://sqlite.org/fileformat2.html#the_write_ahead_log
    """
    log, log_copy = Path(f"{source}-wal"), Path(f"{copy}-wal")
    copy.touch()
    for _ in range(TRIES):
        before = _generation(source, log)
        _copy_changes(source, copy)
        log_copy.unlink(missing_ok=True)
        if log.exists():
            shutil.copyfile(log, log_copy)
        if before == _generation(source, log):
            return
    raise StoreError(f"{source} is written faster than it can be copied; try again when less goes on")


def _copy_changes(source: Path, copy: Path) -> None:
    with (
        open(_descriptor(source), "rb", buffering=0, closefd=False) as reader,
        open(copy, "r+b", buffering=0) as writer,
    ):
        reader.seek(0)
        while block := reader.read(_BYTES_AT_ONCE):
            if writer.read(len(block)) != block:
                writer.seek(reader.tell() - len(block))
                writer.write(block)


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


def _finish(copy: Path, source: Path) -> None:
    """Make one file of the copies, and check it."""
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        if version_of(connection) == 0 or not is_ours(connection):
            raise UnusableFile(f"{source} is not a store")
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        refuse_damage(connection)
    finally:
        connection.close()
    copy.chmod(0o600)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
