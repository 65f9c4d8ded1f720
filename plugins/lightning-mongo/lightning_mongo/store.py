"""The store that a run is given: the facade over a partition of a MongoDB database."""

from collections.abc import Mapping
from typing import Any

from lightning_core.deprecated import deprecated
from lightning_core.store import StoreFacade
from lightning_core.store.clock import Clock
from lightning_core.store.tracking import MetricsBackend
from lightning_mongo.backend import MongoBackend

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
        backend = MongoBackend(
            uri,
            database=database,
            partition_id=partition_id,
            connect_seconds=connect_seconds,
            retry_seconds=retry_seconds,
            poll_milliseconds=poll_milliseconds,
            keep_days=keep_days,
            client_options=client_options,
        )
        super().__init__(backend, run_id=run_id, clock=clock, lease_seconds=lease_seconds, tracker=tracker)
