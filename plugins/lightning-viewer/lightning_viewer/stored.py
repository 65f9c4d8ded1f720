"""Opens the store of a run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
    if folder.lock.owner() is not None:
        async with copied(folder) as store:
            yield store
        return
    _require_store(folder)
    store = _open(folder, folder.store_file)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def copied(folder: RunFolder) -> AsyncIterator[LightningStore]:
    """Open a copy of the store of a run during the block, whether the run goes on or not.

    Raises:
        RunFolderError: When the run has no store in its folder.
        StoreError: When its store cannot be copied.
    """
    _require_store(folder)
    with TemporaryDirectory(prefix="agl-") as copies:
        path = Path(copies) / folder.store_file.name
        back_up = default_registry().load("stores", DURABLE).back_up
        await asyncio.to_thread(back_up, folder.store_file, path)
        # Nothing is overdue in a copy: it is the store itself that takes attempts from silent workers.
        store = _open(folder, path, check=False, lease_seconds=LEASE_SECONDS)
        try:
            yield store
        finally:
            await store.aclose()


LEASE_SECONDS = 1e9


def _require_store(folder: RunFolder) -> None:
    if not folder.store_file.is_file():
        raise RunFolderError(
            f"run {folder.run_id} has no store in its folder, so its rollouts are not known; a run keeps one there "
            "where lightning-sqlite is installed and the config names no store"
        )


def _open(folder: RunFolder, path: Path, **options: Any) -> LightningStore:
    options |= {"name": DURABLE, "path": path, "run_id": folder.run_id}
    return default_registry().build("stores", options, expected=LightningStore)
