"""The port that `StoreFacade` asks for, over one SQLite file."""

import os
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.store import StoreFacade
from lightning_core.store.backend import Change, Document, DocumentKind, StoreBackend
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.clock import Clock
from lightning_core.store.codec.spans import as_json, encoded
from lightning_core.store.query import Query
from lightning_core.store.tracking import MetricsBackend
from lightning_core.store.waits import Listeners
from lightning_core.types import Span
from lightning_sqlite.backup import back_up, compact
from lightning_sqlite.database import Database, Durability
from lightning_sqlite.documents import Documents
from lightning_sqlite.rollouts import Rollouts
from lightning_sqlite.spans import Spans
from lightning_sqlite.writer import Writer

_DOCUMENT_NAMES = {"resources": "resources", "workers": "worker", "state": "state"}


class SqliteBackend(StoreBackend):
    """Keeps everything in one SQLite file, which this process owns until it is closed.

    Every write is acknowledged after its commit; one thread commits together what is asked for at the same time. It
    may be used from any thread and any event loop of the process.

    Args:
        path: The file; made where there is none. Its folder has to be there.
        durability: What acknowledged writes survive: `"process"`, a kill of the process, or `"power"`, also a power
            cut or a crash of the system.
        check: Whether to look at every page of the file for damage first.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open; names its process.
        UnusableFile: When the file is not a store, is of a newer version, or cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "process", check: bool = True) -> None:
        self._listeners = Listeners()
        database = Database(path, durability, check=check)
        try:
            self._writer = Writer(database, self._listeners.tell)
        except BaseException as exc:  # it reads what is there, which may be damaged
            database.close()
            if isinstance(exc, sqlite3.Error):
                raise database.not_opened(exc) from exc
            raise
        session = self._writer.session
        self._session = session
        self._rollouts = Rollouts(session)
        self._spans = Spans(session, self._rollouts)
        self._documents = Documents(session)
        self._finalizer = weakref.finalize(self, self._writer.close)

    @property
    def name(self) -> str:
        """What statistics call this store."""
        return "SqliteLightningStore"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    async def kept_runs(self) -> list[str]:
        """Return all runs of the file, oldest first."""
        return await self._writer.do(self._session.all_runs)

    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order.

        Raises:
            InvalidRequest: When an input or metadata has a value that JSON cannot hold.
        """
        return await self._writer.do(partial(self._rollouts.insert, records))

    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""
        self._writer.check_usable()
        row = self._session.rows.committed((run_id, rollout_id))
        if row is not None:
            return row.record
        return await self._writer.do(partial(self._rollouts.get, run_id, rollout_id))

    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        return await self._writer.do(partial(self._rollouts.replace, old, new))

    async def claim(
        self,
        run_id: str,
        limit: int,
        begin: Callable[[RolloutRecord], RolloutRecord],
        *,
        request_id: str | None = None,
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        return await self._writer.do(partial(self._rollouts.claim, run_id, limit, begin, request_id))

    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout."""
        return await self._writer.do(partial(self._rollouts.find, run_id, query))

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`."""
        self._writer.check_usable()
        earliest = self._session.earliest.committed(run_id)
        if earliest is not None and (earliest.at is None or now < earliest.at):
            return []
        return await self._writer.do(partial(self._rollouts.due, run_id, now))

    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due."""
        self._writer.check_usable()
        earliest = self._session.earliest.committed(run_id)
        if earliest is not None:
            return earliest.at
        return await self._writer.do(partial(self._rollouts.next_deadline, run_id))

    async def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        Raises:
            NotFound: When a rollout is gone.
        """
        rows = [(span.rollout_id, span.attempt_id, row) for span, row in zip(spans, encoded(spans), strict=True)]
        return await self._writer.do(partial(self._spans.append, run_id, rows))

    async def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id."""
        rows = [(span.rollout_id, span.attempt_id, row) for span, row in zip(spans, encoded(spans), strict=True)]
        await self._writer.do(partial(self._spans.replace, run_id, rows))

    async def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`."""
        return await self._writer.do(partial(self._spans.reserve, run_id, attempts))

    async def find_spans(
        self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query
    ) -> tuple[list[Span], int]:
        """Query the spans of a rollout, or of one of its attempts."""
        return await self._writer.do(partial(self._spans.find, run_id, rollout_id, attempt_id, query))

    async def put_document(
        self,
        run_id: str,
        kind: DocumentKind,
        key: str,
        value: Any,
        *,
        revision: int,
        requests: tuple[Request, ...] = (),
    ) -> Document | None:
        """Write a document, which thereby becomes the latest of its kind.

        Raises:
            InvalidRequest: When the value has something that JSON cannot hold.
        """
        own = as_json(value, f"{_DOCUMENT_NAMES[kind]} {key!r}")
        return await self._writer.do(partial(self._documents.put, run_id, kind, key, own, revision, requests))

    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        self._writer.check_usable()
        stored = self._session.documents.committed((run_id, kind, key))
        if stored is not None:
            return stored.document
        return await self._writer.do(partial(self._documents.get, run_id, kind, key))

    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        self._writer.check_usable()
        latest = self._session.latest.committed((run_id, kind))
        if latest is not None:
            return latest.key
        return await self._writer.do(partial(self._documents.latest_key, run_id, kind))

    async def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        return await self._writer.do(partial(self._documents.all, run_id, kind))

    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before."""
        return await self._writer.do(partial(self._documents.remember_requests, run_id, owner, requests, now, wanted))

    async def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans."""
        return await self._writer.do(partial(self._rollouts.delete, run_id, rollout_ids))

    async def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run."""
        await self._writer.do(partial(self._rollouts.delete_run, run_id))

    async def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run."""

        def counted() -> dict[str, int]:
            run = self._session.find_run(run_id)
            return {
                "rollouts": run.rollouts if run else 0,
                "attempts": run.attempts if run else 0,
                "spans": run.spans if run else 0,
                "resources": self._documents.count(run_id, "resources"),
                "workers": self._documents.count(run_id, "workers"),
            }

        return await self._writer.do(counted)

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
        path: The file, made where there is none; its folder has to be there. One file holds any number of runs.
        durability: What acknowledged writes survive: `"process"`, a kill of the process, or `"power"`, also a power
            cut or a crash of the system, at the cost of a disk flush for each group of writes.
        run_id: The run that this store works for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        check: Whether to look at every page of the file for damage before it is used, which takes about 3 s a gigabyte.
        tracker: Where calls are counted and timed, and how rollouts end; None for nowhere.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
        StoreInUse: When another store has the file open; names its process.
        UnusableFile: When the file is not a store, is of a newer version, or cannot be opened. It is left as it was.
    """

    back_up = staticmethod(back_up)
    compact = staticmethod(compact)

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        durability: Durability = "process",
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        check: bool = True,
        tracker: MetricsBackend | None = None,
    ) -> None:
        backend = SqliteBackend(path, durability=durability, check=check)
        try:
            super().__init__(backend, run_id=run_id, clock=clock, lease_seconds=lease_seconds, tracker=tracker)
        except BaseException:
            backend.close()
            raise
