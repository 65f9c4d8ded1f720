"""The store that a run is given, and its backend: a partition of a MongoDB database."""

import asyncio
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from lightning_core.deprecated import deprecated
from lightning_core.store import StoreFacade
from lightning_core.store.backend import Change
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.clock import Clock
from lightning_core.store.tracking import MetricsBackend
from lightning_mongo import schema
from lightning_mongo.database import Settings
from lightning_mongo.documents import DocumentPart
from lightning_mongo.portal import in_the_loop
from lightning_mongo.rollouts import RolloutPart
from lightning_mongo.spans import SpanPart


class MongoBackend(RolloutPart, SpanPart, DocumentPart):
    """Keeps everything in a partition of a MongoDB database, which others may use at the same time.

    A majority of the replica set has written to its journal what is acknowledged. The connection is made with the first
    request, in a thread of its own, so that it may be used from any thread and any event loop of the process.

    Args:
        settings: How the database is used, such as `Settings("mongodb://127.0.0.1:27017", partition_id="team-a")`.

    Raises:
        InvalidRequest: When the driver does not take the options.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
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

    @in_the_loop
    async def kept_runs(self) -> list[str]:
        """Return all runs of the partition, oldest first."""
        first, end = self._database.run_keys
        begun: dict[str, Any] = {}
        for name in (schema.ROLLOUTS, schema.DOCUMENTS):
            of_partition = {"_id.run": {"$gte": first, "$lt": end}}
            collection = self._database.collection(name)
            for key in await self._database.retried(lambda: collection.distinct("_id.run", of_partition)):  # noqa: B023
                for oldest in await self._database.find(
                    name, {"_id.run": key}, {"number": 1}, sort=[("number", 1)], limit=1
                ):
                    begun[key] = min(begun.get(key, oldest["number"]), oldest["number"])
        return [self._database.run_of(key) for key in sorted(begun, key=begun.__getitem__)]

    @in_the_loop
    async def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run."""
        await self._delete_all_rollouts(run_id)
        await self._delete_all_spans(run_id)
        await self._delete_all_documents(run_id)

    @in_the_loop
    async def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run.

        Of rollouts and spans at most 100,000 are counted, and of attempts those of these rollouts.
        """
        (rollouts, attempts), spans, resources, workers = await asyncio.gather(
            self._count_rollouts(run_id),
            self._count_spans(run_id),
            self._count_documents(run_id, "resources"),
            self._count_documents(run_id, "workers"),
        )
        return {
            "rollouts": rollouts,
            "attempts": attempts,
            "spans": spans,
            "resources": resources,
            "workers": workers,
        }

    def watch(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener after each written record, until the returned function is called."""
        return self._listeners.add(run_id, listener)

    async def aclose(self) -> None:
        """Finish what was asked for, and let go of the server."""
        await asyncio.get_running_loop().run_in_executor(None, self._portal.close)
        self._finalizer.detach()

    def close(self) -> None:
        """Do as `aclose` does, and block until then."""
        self._finalizer()


DEFAULT_URI = "mongodb://127.0.0.1:27017"


class MongoLightningStore(StoreFacade):
    """A store in MongoDB, which any number of processes and machines may share.

    What it acknowledged, a majority of the replica set has in its journal. In a replica set, what belongs together is
    written in one transaction, and waiters are told by a change stream; on a standalone server, a request for several
    spans or rollouts that is cut off may be there in part until it is repeated, and others' changes are asked for
    each `poll_milliseconds`. It may be used from any thread and any event loop of the process. It keeps what JSON can
    hold: an input or metadata of another kind is refused, and tuples come back as lists.

    The connection is made with the first request. A server that goes away is waited for.

    Args:
        uri: The address. Its password is never shown.
        database: The database's name.
        partition_id: The part of the database that is used: runs in other partitions are neither seen nor touched.
        connect_seconds: How long to look for a server before giving up.
        retry_seconds: How long each request is repeated while the server is away.
        poll_milliseconds: How often a standalone server is asked what others have written.
        keep_days: After how many days the server deletes rollouts that have ended, and spans; None for never.
        client_options: What else pymongo's client is made with, such as `{"tlsCAFile": "ca.pem"}`. Write concern, read
            preference and time limits are the store's.
        run_id: The run that this store works for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        tracker: Where calls are counted and timed, and how rollouts end; None for nowhere.

    Raises:
        InvalidRequest: For an argument that is wrong in itself.
    """

    @deprecated(
        renamed={"mongo_uri": "uri", "database_name": "database", "mongo_client_kwargs": "client_options"},
        without_effect={
            "scan_debounce_seconds": "deadlines are looked at when they come",
        },
    )
    def __init__(
        self,
        uri: str = DEFAULT_URI,
        *,
        database: str = "lightning",
        partition_id: str = "default",
        connect_seconds: float = 5.0,
        retry_seconds: float = 30.0,
        poll_milliseconds: float = 50.0,
        keep_days: float | None = None,
        client_options: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        tracker: MetricsBackend | None = None,
    ) -> None:
        settings = Settings(
            uri,
            database=database,
            partition_id=partition_id,
            connect_seconds=connect_seconds,
            retry_seconds=retry_seconds,
            poll_milliseconds=poll_milliseconds,
            keep_days=keep_days,
            client_options=client_options or {},
        )
        super().__init__(
            MongoBackend(settings), run_id=run_id, clock=clock, lease_seconds=lease_seconds, tracker=tracker
        )
