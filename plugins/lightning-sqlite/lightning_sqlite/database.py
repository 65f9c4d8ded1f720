"""Opening the file: what is checked, who owns it, how safely it is written."""

import logging
import os
import socket
import sqlite3
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from lightning_core.errors import InvalidRequest, LightningError, StoreError, StoreFull
from lightning_sqlite.schema import VERSION, create_tables, is_ours, version_of

logger = logging.getLogger(__name__)


class StoreInUse(StoreError):
    """Another store has the file open; the message names its process."""


class UnusableFile(StoreError):
    """The file cannot be a store, or cannot be opened as one; it was left as it was."""


_HOW_TO_FREE = "free space on its disk or in its quota, such as by agl runs rm --older-than 30d"


def explained(exc: Exception, path: Path) -> Exception:
    """Return the error that a caller understands, for one that carrying out an operation raised.

    Args:
        exc: What was raised. The store's own errors, and errors of other kinds, come back as they are.
        path: The database file.
    """
    if isinstance(exc, LightningError):
        return exc
    if isinstance(exc, UnicodeEncodeError | OverflowError):
        return InvalidRequest(
            f"a text that is not valid Unicode, or a number that is too large, cannot be stored: {exc}"
        )
    if not isinstance(exc, sqlite3.Error):
        return exc
    code = primary_code(exc)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"{path}: there is no room left ({exc}), and nothing of this request was written; {_HOW_TO_FREE}, "
            "or delete what has ended (delete_rollouts)"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(f"{path} is damaged: {exc}; go on with a copy that is not")
    return StoreError(f"{path}: {exc} ({exc.sqlite_errorname if code else type(exc).__name__})")


def primary_code(exc: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for an error that is not SQLite's but of Python's module.

    A write that the system refuses is `SQLITE_FULL`: so a quota, or a limit on the size of files, says that it is full.
    """
    code: int | None = getattr(exc, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
        return sqlite3.SQLITE_FULL
    return 0 if code is None else code & 0xFF


Durability = Literal["process", "power"]
"""What acknowledged writes survive: the death of the process, or also a power cut."""

_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
_PAGES_BETWEEN_CHECKPOINTS = 8_000
_CACHE_KIB = 64 * 1024
_STATEMENTS = 256


class Database:
    """An open file, owned by this object until it is closed.

    SQLite itself keeps all others out, by a lock that ends with the process (and that a forked child does not
    have). Beside the file a note says who the owner is, for the error of those who come second.

    Args:
        path: The file; made where there is none.
        durability: What acknowledged writes survive.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open.
        UnusableFile: When the file is not a store, of another version, damaged, or cannot be opened. What it holds is
            left as it was.
        StoreFull: When there is no room on its disk.
    """

    def __init__(self, path: str | os.PathLike[str], durability: Durability) -> None:
        if durability not in get_args(Durability):
            raise InvalidRequest(
                f"durability is {durability!r}; it is 'process' (acknowledged writes survive a kill of the process) "
                "or 'power' (also a power cut, at the cost of a disk flush for each group of writes)"
            )
        self.path = checked_path(path)
        self._note = Path(f"{self.path}-owner")
        _refuse_foreign(self.path)
        try:
            with suppress(FileExistsError):  # a new file is its owner's alone, and so are its journals
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
            self.connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=_STATEMENTS
            )
        except (sqlite3.Error, OSError) as exc:
            raise self.not_opened(exc) from exc
        try:
            self._take(durability)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            self._note.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")
        except (sqlite3.Error, OSError) as exc:
            self.connection.close()
            raise self.not_opened(exc) from exc
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Write everything into the one file, and let go of it."""
        try:
            self._note.unlink(missing_ok=True)  # while the file is ours: the next owner's note stays
        finally:
            self.connection.close()

    def _take(self, durability: Durability) -> None:
        execute = self.connection.execute
        # Exclusive before the first access: SQLite then needs no memory that it shares with other processes.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA trusted_schema = OFF")
        execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        execute("PRAGMA temp_store = MEMORY")
        if not is_ours(self.connection):
            raise UnusableFile(
                f"{self.path} is a database of another program, not a store; it was left as it is, take another path"
            )
        version = version_of(self.connection)
        if version not in (0, VERSION):
            raise UnusableFile(
                f"{self.path} has schema version {version}, and this lightning-sqlite knows version {VERSION}; it was "
                "left as it is, use the lightning-sqlite that wrote it, or take another path"
            )
        (mode,) = execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise UnusableFile(f"{self.path}: its file system takes no write-ahead log; use a folder on a local disk")
        execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        execute(f"PRAGMA fullfsync = {int(durability == 'power')}")
        execute(f"PRAGMA wal_autocheckpoint = {_PAGES_BETWEEN_CHECKPOINTS}")
        # Even where nothing is to be written yet: from here on the file is ours.
        execute("BEGIN EXCLUSIVE")
        execute("COMMIT")
        for file in (self.path, Path(f"{self.path}-wal")):
            _close_to_others(file)
        _refuse_damage(self.connection)
        if version == 0:
            create_tables(self.connection)

    def not_opened(self, exc: Exception) -> Exception:
        """Return the error that a caller understands, for one that opening the file raised."""
        code = primary_code(exc) if isinstance(exc, sqlite3.Error) else 0
        if code == sqlite3.SQLITE_BUSY:
            return StoreInUse(
                f"{self.path} is in use by {self._owner()}; one process owns a store, the others reach it over "
                "that process's server, or take another path"
            )
        if code == sqlite3.SQLITE_NOTADB:
            return UnusableFile(
                f"{self.path} is not an SQLite database ({exc}); it was left as it is, take another path"
            )
        if code == sqlite3.SQLITE_CORRUPT:
            return UnusableFile(f"{self.path} is damaged: {exc}; take a copy that is not, or another path")
        if code == sqlite3.SQLITE_FULL:
            return StoreFull(f"{self.path} cannot be opened: there is no room left on its disk ({exc}); {_HOW_TO_FREE}")
        return UnusableFile(f"{self.path} cannot be opened: {exc}; a store writes to its file and its folder")

    def _owner(self) -> str:
        """Return what the note beside the file says."""
        try:
            return self._note.read_text(encoding="utf-8")
        except OSError:
            return "another program"


def _refuse_damage(connection: sqlite3.Connection) -> None:
    """Look at every page of a database.

    Raises:
        sqlite3.DatabaseError: When one is damaged.
    """
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        error = sqlite3.DatabaseError(" ".join(result.removeprefix("*** in database main ***").split()))
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"
        raise error


def _close_to_others(path: Path) -> None:
    """Take a file from others that can read it: a store has keys."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        try:
            path.chmod(mode & 0o700)
            logger.warning("lightning.store_made_private path=%s: others could use it (mode %04o)", path, mode)
        except OSError as exc:  # somebody else's
            logger.warning("lightning.store_not_private path=%s: others can use it, and it has keys: %s", path, exc)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a database file.

    Raises:
        InvalidRequest: When it is not the path of a file.
        UnusableFile: When there is no folder for it, or the path is that of a folder.
    """
    text = path if isinstance(path, str) else str(path) if isinstance(path, os.PathLike) else ""
    if not text or "\0" in text:
        raise InvalidRequest(f"path is {path!r}; it is the path of a file")
    if text == ":memory:" or text.startswith("file:"):
        raise InvalidRequest(f"path is {text!r}; it is the plain path of a file. The store 'memory' keeps nothing")
    absolute = Path(text).expanduser().absolute()
    if absolute.is_dir():
        raise UnusableFile(f"{absolute} is a folder; name a file in it, such as {absolute / 'store.sqlite'}")
    if not absolute.parent.is_dir():
        raise UnusableFile(f"{absolute} cannot be opened: there is no folder {absolute.parent}; make it first")
    return absolute


def _refuse_foreign(path: Path) -> None:
    """Refuse what is not a database: SQLite takes a short file for an empty one, and writes over it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    # Through SQLite rather than `open`: closing a descriptor of ours would drop the locks of a store in this process.
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            version_of(connection)
        finally:
            connection.close()
    except sqlite3.Error as exc:
        if primary_code(exc) == sqlite3.SQLITE_NOTADB:
            raise UnusableFile(
                f"{path} is not an SQLite database ({exc}); it was left as it is, take another path"
            ) from exc
