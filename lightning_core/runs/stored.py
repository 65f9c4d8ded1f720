"""Opens the store of a run."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lightning_core.errors import RunFolderError, StoreError
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder, find_run, runs_in
from lightning_core.runs.recording import DURABLE
from lightning_core.store import LightningStore


def find(root: Path, run: str | None) -> RunFolder:
    """Find a run; None for the latest.

    Raises:
        RunFolderError: When there is none.
    """
    if run is not None:
        return find_run(root, run)
    folders = runs_in(root)
    if not folders:
        raise RunFolderError(f"there are no runs in {root}; name their folder with --runs-dir or AGL_RUNS_DIR")
    return max(folders, key=lambda folder: folder.manifest().start)


@asynccontextmanager
async def copied(folder: RunFolder) -> AsyncIterator[LightningStore]:
    """Open a copy of the store of a run during the block, as it is now, whether the run goes on or not.

    The process that works on the run is not asked, and does not wait; it may have the store open long after the run's
    end. The run's own file stays as it is.

    Raises:
        RunFolderError: When the run has no store in its folder.
        StoreError: When its store cannot be copied.
    """
    if not folder.store_file.is_file():
        raise RunFolderError(
            f"run {folder.run_id} has no store in its folder, so its rollouts are not known; a run keeps one there "
            "where lightning-sqlite is installed and the config names no store"
        )
    with tempfile.TemporaryDirectory(prefix="agl-copy-") as copies:
        path = Path(copies) / folder.store_file.name
        copy_file = default_registry().load("stores", DURABLE).copy_file
        await asyncio.to_thread(copy_file, folder.store_file, path)
        # Nothing is overdue in a copy: it is the store itself that takes attempts from silent workers.
        options: dict[str, Any] = {"name": DURABLE, "path": path, "run_id": folder.run_id}
        options |= {"lease_seconds": LEASE_SECONDS}
        try:
            store = default_registry().build("stores", options, expected=LightningStore)
        except StoreError as exc:  # it names the copy
            raise StoreError(str(exc).replace(str(path), str(folder.store_file))) from exc
        try:
            yield store
        finally:
            await store.aclose()


LEASE_SECONDS = 1e9
