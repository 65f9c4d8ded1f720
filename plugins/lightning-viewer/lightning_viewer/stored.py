"""Opens the store of a run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lightning_core.errors import RunFolderError
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
async def opened(folder: RunFolder) -> AsyncIterator[LightningStore]:
    """Open the store of a run during the block; of a run that goes on, a copy of it as it is now.

    The process that works on the run is not asked, and does not wait.

    Raises:
        RunFolderError: When the run has no store in its folder.
        StoreError: When its store cannot be copied.
    """
    if not folder.store_file.is_file():
        raise RunFolderError(
            f"run {folder.run_id} has no store in its folder, so its rollouts are not known; a run keeps one there "
            "where lightning-sqlite is installed and the config names no store"
        )
    with TemporaryDirectory(prefix="agl-") as copies:
        options = {"name": DURABLE, "path": folder.store_file, "run_id": folder.run_id}
        if folder.lock.owner() is not None:
            options["path"] = Path(copies) / folder.store_file.name
            options["check"] = False  # the copy was
            back_up = default_registry().load("stores", DURABLE).back_up
            await asyncio.to_thread(back_up, folder.store_file, options["path"])
        store = default_registry().build("stores", options, expected=LightningStore)
        try:
            yield store
        finally:
            await store.aclose()
