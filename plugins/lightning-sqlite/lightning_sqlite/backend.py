"""The store that a run is given, and its backend: one SQLite file."""

import os
import sqlite3
import weakref
from collections.abc import Callable

from lightning_core.store import StoreFacade
from lightning_core.store.backend import Change
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.clock import Clock
from lightning_core.store.tracking import MetricsBackend
from lightning_core.store.waits import Listeners
from lightning_sqlite.database import Database, Durability
from lightning_sqlite.documents import DocumentPart
from lightning_sqlite.files import compact, copy_file
from lightning_sqlite.spans import SpanPart
from lightning_sqlite.writer import Writer, in_the_thread


class SqliteBackend(SpanPart, DocumentPart):
    """Keeps everything in one SQLite file, which this process owns until it is closed.

    Every write is acknowledged after its commit; one thread commits together what is asked for at the same time. It
    may be used from any thread and any event loop of the process.

    Args:
        path: The file; made where there is none. Its folder has to be there.
        durability: What acknowledged writes survive: `"process"`, a kill of the process, or `"power"`, also a power
            cut or a crash of the system.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open; names its process.
        UnusableFile: When the file is not a store, is of another version, is damaged, or cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "process") -> None:
        self._listeners = Listeners()
        database = Database(path, durability)
        try:
            writer = Writer(database, self._listeners.tell)
        except BaseException as exc:  # it reads what is there, which may be damaged
            database.close()
            if isinstance(exc, sqlite3.Error):
                raise database.not_opened(exc) from exc
            raise
        super().__init__(writer)
        self._finalizer = weakref.finalize(self, writer.close)

    @property
    def name(self) -> str:
        """What statistics call this store."""
        return "SqliteLightningStore"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    @in_the_thread
    def kept_runs(self) -> list[str]:
        """Return all runs of the file, oldest first."""
        return self._session.all_runs()

    @in_the_thread
    def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run."""
        run = self._session.find_run(run_id)
        return {
            "rollouts": run.rollouts if run else 0,
            "attempts": run.attempts if run else 0,
            "spans": run.spans if run else 0,
            "resources": self._count_documents(run_id, "resources"),
            "workers": self._count_documents(run_id, "workers"),
        }

    def watch(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener after each committed record, until the returned function is called."""
        return self._listeners.add(run_id, listener)

    async def aclose(self) -> None:
        """Finish what was asked for, write everything into the one file, and let go of it."""
        await self._writer.aclose()
        self._finalizer.detach()

    def close(self) -> None:
        """Do as `aclose` does, and block until then."""
        self._finalizer()


DEFAULT_PATH = "lightning.sqlite"


class SqliteLightningStore(StoreFacade):
    """A store in an SQLite file, which one process owns.

    What it acknowledged is there when the file is opened again, whatever happened to the process: rollouts and the
    order of their queue, attempts, leases and deadlines, spans and their numbers, resources, workers, saved state, and
    which requests were answered. It may be used from any thread and any event loop of the process. It keeps what JSON
    can hold: an input or metadata of another kind is refused, and tuples come back as lists.

    Args:
        path: The file, made where there is none; its folder has to be there. One file holds any number of runs. Every
            page is looked at for damage first, about 3 s a gigabyte.
        durability: What acknowledged writes survive: `"process"`, a kill of the process, or `"power"`, also a power
            cut or a crash of the system, at the cost of a disk flush for each group of writes.
        run_id: The run that this store works for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        tracker: Where calls are counted and timed, and how rollouts end; None for nowhere.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open; names its process.
        UnusableFile: When the file is not a store, is of another version, is damaged, or cannot be opened. It is left
            as it was.
    """

    copy_file = staticmethod(copy_file)
    compact = staticmethod(compact)

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        durability: Durability = "process",
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        tracker: MetricsBackend | None = None,
    ) -> None:
        backend = SqliteBackend(path, durability=durability)
        try:
            super().__init__(backend, run_id=run_id, clock=clock, lease_seconds=lease_seconds, tracker=tracker)
        except BaseException:
            backend.close()
            raise
