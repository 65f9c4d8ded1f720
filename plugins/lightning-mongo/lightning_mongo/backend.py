"""The port that `StoreFacade` asks for, over a partition of a MongoDB database."""

import asyncio
import re
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from lightning_core.errors import InvalidRequest
from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.store.backend import Change, Document, DocumentKind, StoreBackend
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.codec.spans import as_json, dumped, encoded
from lightning_core.store.query import Query
from lightning_core.store.run_end import RUN_STATE
from lightning_core.store.waits import Listeners
from lightning_core.types import Span
from lightning_mongo import schema
from lightning_mongo.changes import Deadlines, News, RunStates
from lightning_mongo.database import Database, Settings
from lightning_mongo.documents import Documents
from lightning_mongo.errors import Address, explained
from lightning_mongo.portal import Portal
from lightning_mongo.rollouts import Rollouts
from lightning_mongo.spans import Spans

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_DATABASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
MAX_KEEP_DAYS = 36_500
_DOCUMENT_NAMES = {"resources": "resources", "workers": "worker", "state": "state"}


class MongoBackend(StoreBackend):
    """Keeps everything in a partition of a MongoDB database, which others may use at the same time.

    A majority of the replica set has written to its journal what is acknowledged. The connection is made with the first
    request, in a thread of its own, so that it may be used from any thread and any event loop of the process.

    Args:
        uri: The address.
        database: The database's name.
        partition_id: The part of the database; stores of other partitions see nothing of this one.
        connect_seconds: How long to look for a server before giving up.
        retry_seconds: How long requests are repeated while the server is away.
        poll_milliseconds: How often a standalone server is asked what others have written.
        keep_days: How long the server keeps rollouts that have ended, and spans; None until they are deleted.
        client_options: What else pymongo's client is made with.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
    """

    def __init__(
        self,
        uri: str,
        *,
        database: str = "lightning",
        partition_id: str = "default",
        connect_seconds: float = 5.0,
        retry_seconds: float = 30.0,
        poll_milliseconds: float = 50.0,
        keep_days: float | None = None,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        address = Address(uri)
        _require_name("database", database, _DATABASE_NAME)
        _require_name("partition_id", partition_id, _NAME)
        for name, value, least in (
            ("connect_seconds", connect_seconds, 0.001),
            ("retry_seconds", retry_seconds, 0.0),
            ("poll_milliseconds", poll_milliseconds, 1.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
                raise InvalidRequest(f"{name} is {value!r}; it is a number from {least:g} on")
        if keep_days is not None and (
            isinstance(keep_days, bool) or not isinstance(keep_days, int | float) or not 0 < keep_days <= MAX_KEEP_DAYS
        ):
            raise InvalidRequest(
                f"keep_days is {keep_days!r}; it is a number of more than 0, up to {MAX_KEEP_DAYS:,}, or None for ever"
            )
        if client_options is not None and not isinstance(client_options, Mapping):
            raise InvalidRequest(
                f"client_options is a mapping of pymongo's options; got {type(client_options).__name__}"
            )
        self._database = Database(
            Settings(
                address=address,
                database=database,
                partition=partition_id,
                connect_seconds=connect_seconds,
                retry_seconds=retry_seconds,
                poll_seconds=poll_milliseconds / 1e3,
                keep_seconds=None if keep_days is None else keep_days * 86_400,
                client_options=dict(client_options or {}),
            )
        )
        self._database.new_client(connect=False)  # not connected, so nothing to close: it only checks the options
        self._listeners = Listeners()
        self._deadlines = Deadlines()
        self._run_states = RunStates()
        self._news = News(self._database, self._listeners, self._deadlines, self._run_states)
        self._rollouts = Rollouts(self._database, self._listeners, self._deadlines)
        self._spans = Spans(self._database)
        self._documents = Documents(self._database)
        self._portal = Portal(f"the store in {address}", hurry=self._database.hurry, end=self._database.aclose)
        self._finalizer = weakref.finalize(self, self._portal.close)

    @property
    def name(self) -> str:
        """What statistics call this store."""
        return "MongoLightningStore"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    is_shared = True
    """Others may write to the same partition."""

    async def kept_runs(self) -> list[str]:
        """Return all runs of the partition, oldest first."""
        return await self._do(self._all_runs)

    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order.

        Raises:
            InvalidRequest: When an input or metadata has a value that JSON cannot hold, or is too large.
        """
        return await self._do(partial(self._rollouts.insert, records))

    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""
        return await self._do(partial(self._rollouts.get, run_id, rollout_id))

    async def get_many(self, run_id: str, rollout_ids: Sequence[str]) -> list[RolloutRecord | None]:
        """Return what `get` gives for each id."""
        return await self._do(partial(self._rollouts.get_many, run_id, rollout_ids))

    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        return await self._do(partial(self._rollouts.replace, old, new))

    async def claim(
        self,
        run_id: str,
        limit: int,
        begin: Callable[[RolloutRecord], RolloutRecord],
        *,
        request_id: str | None = None,
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        return await self._do(partial(self._rollouts.claim, run_id, limit, begin, request_id))

    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout."""
        return await self._do(partial(self._rollouts.find, run_id, query))

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`."""
        is_known, earliest = self._deadlines.known(run_id)
        if is_known and (earliest is None or now < earliest):
            self._portal.check_open()
            return []
        return await self._do(partial(self._rollouts.due, run_id, now))

    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due."""
        return await self._do(partial(self._rollouts.next_deadline, run_id))

    async def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        Raises:
            NotFound: When a rollout is gone.
        """
        rows = [(span.rollout_id, span.attempt_id, row) for span, row in zip(spans, encoded(spans), strict=True)]
        return await self._do(partial(self._spans.append, run_id, rows))

    async def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id."""
        rows = [(span.rollout_id, span.attempt_id, row) for span, row in zip(spans, encoded(spans), strict=True)]
        await self._do(partial(self._spans.replace, run_id, rows))

    async def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`."""
        return await self._do(partial(self._spans.reserve, run_id, attempts))

    async def find_spans(
        self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query
    ) -> tuple[list[Span], int]:
        """Query the spans of a rollout, or of one of its attempts."""
        return await self._do(partial(self._spans.find, run_id, rollout_id, attempt_id, query))

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
            InvalidRequest: When the value has something that JSON cannot hold, or is too large.
        """
        own = as_json(value, f"{_DOCUMENT_NAMES[kind]} {key!r}")
        try:
            written = await self._do(partial(self._documents.put, run_id, kind, key, dumped(own), revision, requests))
        finally:
            if (kind, key) == ("state", RUN_STATE):
                self._run_states.changed(run_id)
        return Document(key, own, revision + 1, requests) if written else None

    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        if (kind, key) != ("state", RUN_STATE):
            return await self._do(partial(self._documents.get, run_id, kind, key))
        is_known, document = self._run_states.known(run_id)
        if is_known:
            self._portal.check_open()
            return document
        question = self._run_states.ask()
        document = await self._do(partial(self._documents.get, run_id, kind, key))
        self._run_states.answered(run_id, question, document)
        return document

    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        return await self._do(partial(self._documents.latest_key, run_id, kind))

    async def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        return await self._do(partial(self._documents.all, run_id, kind))

    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before."""
        return await self._do(partial(self._documents.remember_requests, run_id, owner, requests, wanted))

    async def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans."""
        return await self._do(partial(self._rollouts.delete, run_id, rollout_ids))

    async def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run."""

        async def delete() -> None:
            await self._rollouts.delete_all(run_id)
            await self._spans.delete_all(run_id)
            await self._documents.delete_all(run_id)

        try:
            await self._do(delete)
        finally:
            self._run_states.changed(run_id)

    async def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run.

        Of rollouts and spans at most 100,000 are counted, and of attempts those of these rollouts.
        """

        async def counted() -> dict[str, int]:
            (rollouts, attempts), spans, resources, workers = await asyncio.gather(
                self._rollouts.count(run_id),
                self._spans.count(run_id),
                self._documents.count(run_id, "resources"),
                self._documents.count(run_id, "workers"),
            )
            return {
                "rollouts": rollouts,
                "attempts": attempts,
                "spans": spans,
                "resources": resources,
                "workers": workers,
            }

        return await self._do(counted)

    def watch(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener after each written record, until the returned function is called."""
        return self._listeners.add(run_id, listener)

    async def aclose(self) -> None:
        """Finish what was asked for, and let go of the server."""
        await self._portal.aclose()
        self._finalizer.detach()

    def close(self) -> None:
        """Do as `aclose` does, and block until then."""
        self._finalizer()

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        database, news = self._database, self._news

        async def carry_out() -> T:
            try:
                await database.ready(news)
                return await work()
            except Exception as exc:
                error = explained(exc, database.settings.address)
                if error is exc:
                    raise
                raise error from exc

        return await self._portal.call(carry_out)

    async def _all_runs(self) -> list[str]:
        first, end = (f"{self._database.settings.partition}{after}" for after in "/0")  # "0" is what comes after "/"
        begun: dict[str, Any] = {}
        for name in (schema.ROLLOUTS, schema.DOCUMENTS):
            collection = self._database.collection(name)
            runs = await self._database.retried(
                partial(collection.distinct, "_id.run", {"_id.run": {"$gte": first, "$lt": end}})
            )
            for key in runs:
                oldest = await self._database.retried(
                    partial(collection.find_one, {"_id.run": key}, {"number": 1}, sort=[("number", 1)])
                )
                if oldest is not None:
                    begun[key] = min(begun.get(key, oldest["number"]), oldest["number"])
        return [self._database.run_of(key) for key in sorted(begun, key=begun.__getitem__)]


def _require_name(what: str, name: object, form: re.Pattern[str]) -> None:
    if not isinstance(name, str) or not form.fullmatch(name):
        raise InvalidRequest(
            f"{what} is {name!r}; it is a name of up to 63 letters, digits and _ - that begins with a letter or a digit"
        )
