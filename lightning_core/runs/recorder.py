"""Gives each run of a trainer its folder, and a store in it."""

import os
import shutil

from lightning_core.errors import RunFolderError
from lightning_core.registry import Registry
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.recording import Recording
from lightning_core.store import LightningStore


class Recorder:
    """Records the runs of one trainer.

    Args:
        place: The folder of all runs; or that of one, which the next run goes on with.
        registry: Where the store of a run is looked up.
    """

    def __init__(self, place: str | os.PathLike[str] | RunFolder, *, registry: Registry) -> None:
        self._given = place if isinstance(place, RunFolder) else None
        self._root = place.path.parent if isinstance(place, RunFolder) else place
        self._registry = registry

    def next(self, store: LightningStore | None) -> tuple[Recording, LightningStore]:
        """Begin to record the next run.

        Args:
            store: Where the trainer's runs are kept; None for a store in the run's folder.

        Returns:
            The recording, and the store of the run.

        Raises:
            RunFolderError: When the folder cannot be used.
            RegistryError: When the store cannot be built.
        """
        given, self._given = self._given, None
        recording = Recording(self._folder(given, None if store is None else store.run_id))
        try:
            if store is None:
                return recording, recording.make_store(self._registry)
            return recording, store if given is None else store.for_run(given.run_id)
        except BaseException:
            recording.close()
            if not recording.is_resumed:
                shutil.rmtree(recording.folder.path)
            raise

    def _folder(self, given: RunFolder | None, run_id: str | None) -> RunFolder:
        if given is not None:
            if not given.manifest_file.exists():
                raise RunFolderError(f"{given.path} is no run: it has no {given.manifest_file.name}")
            return given
        if run_id is not None:
            there = RunFolder(os.path.join(self._root, run_id))
            if there.manifest_file.exists():  # that store's run goes on
                return there
        return RunFolder.create(self._root, run_id)
