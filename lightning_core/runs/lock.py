"""One process works on a run: a lock that ends with its process, however that ends."""

import json
import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from lightning_core.errors import RunFolderError
from lightning_core.runs.atomic import private

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[Any], *, shared: bool) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[Any], *, shared: bool) -> None:
        # Of the process, not of the open file: a child that is forked does not have it.
        fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


class RunLock:
    """The lock of one run. The file stays when it is let go of.

    Args:
        path: Its file, made where there is none. It says who has the lock, or had it last.
    """

    # The system lets go of a lock when its process closes any descriptor of the file. So what this process holds is
    # known here, and never looked up in the file.
    _held: "dict[Path, RunLock]" = {}  # noqa: RUF012  # one for the process
    _guard = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take it, until `release` or the end of the process.

        Raises:
            RunFolderError: When somebody has it, or the file cannot be made.
        """
        with self._guard:
            owner = self._owner()
            if owner is not None:
                raise RunFolderError(in_use(self._path.parent.name, owner))
            try:
                file = open(self._path, "a+", encoding="utf-8", opener=private)  # noqa: SIM115  # until `release`
            except OSError as exc:
                raise RunFolderError(f"cannot write {self._path}: {exc.strerror}") from exc
            try:
                _lock(file, shared=False)
            except OSError as exc:
                file.close()
                raise RunFolderError(in_use(self._path.parent.name, self._owner() or "another process")) from exc
            since = datetime.now(UTC).isoformat(timespec="seconds")
            note = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
            try:
                file.truncate(0)
                file.write(note)
                file.flush()
            except OSError as exc:
                with suppress(OSError):
                    file.close()
                raise RunFolderError(f"cannot write {self._path}: {exc.strerror}") from exc
            self._file = file
            self._held[self._path] = self

    def release(self) -> None:
        """Let go of it. Does nothing where it is not held."""
        with self._guard:
            if self._file is not None:
                del self._held[self._path]
                self._file.close()
                self._file = None

    def owner(self) -> str | None:
        """Say who has it, as in `process 123 on host, since 2026-11-21T10:00:00+00:00`; None when nobody has."""
        with self._guard:
            return self._owner()

    def _owner(self) -> str | None:
        if self._path in self._held:
            return f"this process, {os.getpid()}"
        try:
            file = open(self._path, encoding="utf-8")  # noqa: SIM115  # closed below
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise RunFolderError(f"cannot read {self._path}: {exc.strerror}") from exc
        with file:
            try:
                _lock(file, shared=True)
            except OSError:
                with suppress(ValueError, KeyError, TypeError):  # it is just being written
                    note = json.loads(file.read())
                    return f"process {note['pid']} on {note['host']}, since {note['since']}"
                return "another process"
        return None


def in_use(run_id: str, owner: str) -> str:
    """Say that a run goes on."""
    return f"run {run_id} is still going on in {owner}; wait for its end, or stop that process"
