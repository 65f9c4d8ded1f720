"""The folder of a run, and the folder that has them all."""

import difflib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from lightning_core.errors import RunFolderError
from lightning_core.runs.manifest import Manifest, Outcome, private

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
        self._file: IO[bytes] | None = None

    def take(self) -> None:
        """Take it, until `release` or the end of the process.

        Raises:
            RunFolderError: When a process has it, or the file cannot be made.
        """
        with self._guard:
            owner = self._owner()
            if owner is not None:
                raise RunFolderError(in_use(self._path.parent.name, owner))
            since = datetime.now(UTC).isoformat(timespec="seconds")
            note = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            try:
                # Not buffered: what a full disk does not take is not written again when the file is closed.
                file = open(self._path, "ab+", buffering=0, opener=private)  # noqa: SIM115  # until `release`
                try:
                    self._lock(file)
                    file.truncate(0)
                    file.write(json.dumps(note).encode() + b"\n")
                except BaseException:
                    file.close()
                    raise
            except OSError as exc:
                raise RunFolderError(f"cannot write {self._path}: {exc.strerror}") from exc
            self._file = file
            self._held[self._path] = self

    def _lock(self, file: IO[Any]) -> None:
        try:
            _lock(file, shared=False)
        except OSError as exc:
            raise RunFolderError(in_use(self._path.parent.name, self._owner() or "another process")) from exc

    def release(self) -> None:
        """Let go of it. Does nothing where it is not held."""
        with self._guard:
            if self._file is not None:
                del self._held[self._path]
                self._file.close()
                self._file = None

    def owner(self) -> str | None:
        """Say who has it, as in `process 123 on host, since 2026-11-21T10:00:00+00:00`; None when no process has it."""
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


Standing = Outcome | Literal["killed"]
"""`killed`: no process works on it, and its end was not written down."""

_ID = re.compile(r"[\w][\w.@+-]*")


class RunFolder:
    """The folder of one run, whether it is there or not. Its name is the id of the run.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.lock = RunLock(self.path / "lock")

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, root: str | os.PathLike[str], run_id: str | None = None) -> "RunFolder":
        """Make the folder of a new run, and the root where there is none.

        Args:
            root: The folder of all runs.
            run_id: The run; None for a new id.

        Raises:
            RunFolderError: When it cannot be made, is there already, or the id cannot name a folder.
        """
        run_id = f"run-{secrets.token_hex(8)}" if run_id is None else run_id
        if _ID.fullmatch(run_id) is None:
            raise RunFolderError(
                f"run_id {run_id!r} cannot name a folder; take letters, digits and any of _ . @ + - after the first"
            )
        folder = cls(Path(root) / run_id)
        try:
            folder.path.parent.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700)
        except OSError as exc:
            raise RunFolderError(
                f"cannot make the folder {folder.path} of the run: {exc.strerror}; name another place with run_dir, "
                "--runs-dir or AGL_RUNS_DIR"
            ) from exc
        return folder

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.path.name

    @property
    def manifest_file(self) -> Path:
        """Says what the run was made of, and its result."""
        return self.path / "manifest.json"

    @property
    def store_file(self) -> Path:
        """The run's store, where it has one of its own."""
        return self.path / "store.db"

    @property
    def metrics_file(self) -> Path:
        """What the algorithm reported."""
        return self.path / "metrics.jsonl"

    @property
    def best_file(self) -> Path:
        """The best resources that it reported."""
        return self.path / "best_resources.json"

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            RunFolderError: When there is none, or it is damaged.
        """
        return Manifest.read(self.manifest_file)

    def standing(self, manifest: Manifest) -> Standing:
        """Say how a run stands, by its manifest and by whether a process works on it."""
        if self.lock.owner() is not None:
            return "running"
        return "killed" if manifest.outcome == "running" else manifest.outcome

    def check_removable(self) -> None:
        """Refuse to delete what is not a run, or a run that still goes on.

        Raises:
            RunFolderError: When it is so.
        """
        if not self.manifest_file.exists():
            raise RunFolderError(f"{self.path} is not a run: it has no {self.manifest_file.name}; nothing was removed")
        owner = self.lock.owner()
        if owner is not None:
            raise RunFolderError(f"{in_use(self.run_id, owner)}; nothing was removed")

    def remove(self) -> None:
        """Delete the folder and all that is in it.

        Raises:
            RunFolderError: When it is not a run, the run still goes on, or something cannot be deleted.
        """
        self.check_removable()
        try:
            shutil.rmtree(self.path)
        except OSError as exc:
            raise RunFolderError(f"cannot remove {exc.filename or self.path}: {exc.strerror}") from exc


def runs_in(root: Path) -> list[RunFolder]:
    """Return the folders below a root that have a manifest, sorted by name; none where there is no root.

    Raises:
        RunFolderError: When the root cannot be read.
    """
    try:
        return sorted((RunFolder(each.parent) for each in root.glob("*/manifest.json")), key=lambda each: each.run_id)
    except OSError as exc:
        raise RunFolderError(f"cannot read the runs in {root}: {exc.strerror}") from exc


def find_run(root: Path, given: str) -> RunFolder:
    """Find a run by its id, the beginning of it with or without `run-`, or the path of its folder.

    Raises:
        RunFolderError: When there is none, or several; says which are near. Also when the folder has no manifest.
    """
    if (os.sep in given or given in (".", "..")) and Path(given).is_dir():
        return _with_manifest(RunFolder(Path(given).resolve()))
    if given and os.sep not in given and (root / given).is_dir():
        return _with_manifest(RunFolder(root / given))
    ids = [folder.run_id for folder in runs_in(root)]
    if not ids:
        raise RunFolderError(
            f"no run {given!r}: there are no runs in {root}; name their folder with --runs-dir or AGL_RUNS_DIR"
        )
    found = [each for each in ids if given and each.startswith((given, f"run-{given}"))]
    if len(found) == 1:
        return RunFolder(root / found[0])
    if found:
        raise RunFolderError(f"{given!r} is the beginning of {_listed(found)}; say more of it")
    by_ending = {each.removeprefix("run-"): each for each in ids}
    near = [by_ending[each] for each in difflib.get_close_matches(given.removeprefix("run-"), by_ending, 3, 0.5)]
    raise RunFolderError(
        f"no run {given!r} in {root}; {'the nearest are' if near else 'there are'} {_listed(near or ids)}"
    )


def _with_manifest(folder: RunFolder) -> RunFolder:
    if not folder.manifest_file.exists():
        raise RunFolderError(
            f"{folder.path} is not a run: it has no {folder.manifest_file.name}; list the runs with: agl runs"
        )
    return folder


def _listed(ids: list[str], limit: int = 5) -> str:
    return ", ".join(ids[:limit]) + (f" and {len(ids) - limit} more" if len(ids) > limit else "")
