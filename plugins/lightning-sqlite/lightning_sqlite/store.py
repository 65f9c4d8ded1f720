"""The store that a run is given: the facade over an SQLite file."""

import os

from lightning_core.store import StoreFacade
from lightning_core.store.clock import Clock
from lightning_sqlite.backend import SqliteBackend
from lightning_sqlite.backup import back_up
from lightning_sqlite.database import Durability

DEFAULT_PATH = "lightning.sqlite"


class SqliteLightningStore(StoreFacade):
    """A store in an SQLite file, which one process owns.

    What it acknowledged is there when the file is opened again, whatever happened to the process: rollouts and the
    order of their queue, attempts, leases and deadlines, spans and their numbers, resources, workers, saved state, and
    which requests were answered. It may be used from any thread and any event loop of the process. It keeps what JSON
    can hold: an input or metadata of another kind is refused, and tuples come back as lists.

    Args:
        path: The file, made where there is none; its folder has to be there. One file holds any number of runs.
        durability: What acknowledged writes survive: `"process"`, a kill of the process, or `"power"`, also a power
            cut or a crash of the system, at the cost of a disk flush for each group of writes.
        run_id: The run that this store works for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        check: Whether to look at every page of the file for damage before it is used, which takes about 3 s a gigabyte.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open; names its process.
        UnusableFile: When the file is not a store, is of a newer version, or cannot be opened. It is left as it was.
    """

    back_up = staticmethod(back_up)

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        durability: Durability = "process",
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        check: bool = True,
    ) -> None:
        backend = SqliteBackend(path, durability=durability, check=check)
        try:
            super().__init__(backend, run_id=run_id, clock=clock, lease_seconds=lease_seconds)
        except BaseException:
            backend.close()
            raise
