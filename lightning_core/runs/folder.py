"""The folder of a run, and the folder that has them all."""

import difflib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Literal

from lightning_core.errors import RunFolderError
from lightning_core.runs.lock import RunLock, in_use
from lightning_core.runs.manifest import Manifest, Outcome

Standing = Outcome | Literal["killed"]
"""`killed`: nobody works on it, and nobody wrote down its end."""

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
                f"cannot make the folder {folder.path} of the run: {exc.strerror}; name another place with --runs-dir "
                "or AGL_RUNS_DIR"
            ) from exc
        return folder

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.path.name

    @property
    def manifest_file(self) -> Path:
        """Says what the run was made of, and what came of it."""
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
        """Say how a run stands, by its manifest and by whether somebody works on it."""
        if self.lock.owner() is not None:
            return "running"
        return "killed" if manifest.outcome == "running" else manifest.outcome

    def check_removable(self) -> None:
        """Refuse to delete what is no run, or a run that still goes on.

        Raises:
            RunFolderError: When it is so.
        """
        if not self.manifest_file.exists():
            raise RunFolderError(f"{self.path} is no run: it has no {self.manifest_file.name}; nothing was removed")
        owner = self.lock.owner()
        if owner is not None:
            raise RunFolderError(f"{in_use(self.run_id, owner)}; nothing was removed")

    def remove(self) -> None:
        """Delete the folder and all that is in it.

        Raises:
            RunFolderError: When it is no run, the run still goes on, or something cannot be deleted.
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
            f"{folder.path} is no run: it has no {folder.manifest_file.name}; list the runs with: agl runs"
        )
    return folder


def _listed(ids: list[str], limit: int = 5) -> str:
    return ", ".join(ids[:limit]) + (f" and {len(ids) - limit} more" if len(ids) > limit else "")
