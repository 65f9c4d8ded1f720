"""The connection: opened with the first request, and patient with a server that is away for a while."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pymongo import AsyncMongoClient, DeleteMany, InsertOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, BulkWriteError, ConfigurationError

from lightning_core.errors import InvalidRequest, StoreUnavailable, first_fault
from lightning_mongo import schema
from lightning_mongo.errors import OUT_OF_REACH, Address, in_short, is_away, refuse_all_but_duplicates

T = TypeVar("T")

Collection = AsyncCollection[dict[str, Any]]
Operation = InsertOne[dict[str, Any]] | UpdateOne | DeleteMany
Session = AsyncClientSession

logger = logging.getLogger(__name__)

CALL_SECONDS = 60.0
"""How long one call may take; then its connection is taken for dead."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
_LOGGED_AFTER_SECONDS = 3.0
_SECRET = re.compile("password|properties|encryption", re.IGNORECASE)
"""Which options' values are never shown."""


Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]
MAX_KEEP_DAYS = 36_500


class Settings(BaseModel):
    """How a database is used.

    Raises:
        InvalidRequest: For a value that is wrong in itself.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    address: Address
    database: str = Field(default="lightning", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
    partition_id: str = Field(default="default", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    connect_seconds: Annotated[Seconds, Field(ge=0.001)] = 5.0
    retry_seconds: Annotated[Seconds, Field(ge=0.0)] = 30.0
    poll_milliseconds: Annotated[Seconds, Field(ge=1.0)] = 50.0
    keep_days: Annotated[Seconds, Field(gt=0.0, le=MAX_KEEP_DAYS)] | None = None
    client_options: Mapping[str, Any] = Field(default_factory=dict, repr=False)

    def __init__(self, uri: str, **options: Any) -> None:
        try:
            super().__init__(address=Address(uri), **options)
        except ValidationError as exc:
            is_secret = exc.errors()[0]["loc"][0] == "client_options"
            raise InvalidRequest(first_fault(exc, shows_input=not is_secret)) from None

    @property
    def keep_seconds(self) -> float | None:
        """How long what has ended is kept; None until it is deleted."""
        return None if self.keep_days is None else self.keep_days * 86_400


class Write(NamedTuple):
    """A change of one document, which leaves a token in it."""

    id: dict[str, str]
    operation: Operation
    token: str


def key_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the id of a document as something that can be a key."""
    return tuple(document["_id"].values())


async def pause(seconds: float, end: asyncio.Event) -> None:
    """Wait so long, or until this event."""
    try:
        async with asyncio.timeout(seconds):
            await end.wait()
    except TimeoutError:
        return


class Database:
    """One database, in one event loop.

    What is acknowledged was written by a majority of the replica set, and to its journal. Whatever is read comes from
    the primary.

    Args:
        settings: How it is used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.me = secrets.token_hex(6)
        """Tells what this store wrote from what others wrote."""
        self.is_replica_set = False
        """Whether there are transactions and change streams: in a replica set, or behind a mongos."""
        self._tokens = count(1)
        self._client: AsyncMongoClient[dict[str, Any]] | None = None
        self._closing = asyncio.Event()
        self._server_ahead_seconds = 0.0
        """A `time.monotonic` value."""
        self._away_since: float | None = None
        self._away_is_logged = False

    def run_key(self, run_id: str) -> str:
        """Return what a run is called in this partition."""
        return f"{self.settings.partition_id}/{run_id}"

    @property
    def run_keys(self) -> tuple[str, str]:
        """Between which two keys, without the second, all runs of this partition are."""
        return f"{self.settings.partition_id}/", f"{self.settings.partition_id}0"  # "0" is what comes after "/"

    def run_of(self, key: str) -> str:
        """Return the run of this name."""
        return key.partition("/")[2]

    def new_token(self) -> str:
        """Return what one write leaves behind, so that it can be told from others."""
        return f"{self.me}:{next(self._tokens)}"

    def is_own(self, token: object) -> bool:
        """Whether this store left the token."""
        return isinstance(token, str) and token.startswith(f"{self.me}:")

    def server_seconds(self) -> float:
        """Return the server's time, about, in seconds since the epoch."""
        return time.monotonic() + self._server_ahead_seconds

    @property
    def client(self) -> AsyncMongoClient[dict[str, Any]]:
        """The open client."""
        assert self._client is not None
        return self._client

    def collection(self, name: str) -> Collection:
        """Return one of the collections of the schema."""
        return self.client[self.settings.database][name]

    async def open(self) -> None:
        """Connect, and make what is missing.

        Raises:
            StoreUnavailable: When no server answers in time.
            UnusableDatabase: When it is of a newer version.
        """
        settings = self.settings
        self._client = self.new_client()
        try:
            hello = await self.hello()
        except OUT_OF_REACH as exc:
            raise StoreUnavailable(
                f"no MongoDB answers at {settings.address} within {settings.connect_seconds:g} s: {in_short(exc)}; "
                "start it, or check the uri"
            ) from exc
        self.is_replica_set = "setName" in hello or hello.get("msg") == "isdbgrid"
        await schema.prepare(self._client[settings.database], settings.address)

    async def hello(self) -> dict[str, Any]:
        """Return what the server says of itself, and note what time it has."""
        # By default the driver leaves the zone out here, whatever the client was made with.
        hello: dict[str, Any] = await self.client.admin.command("hello", codec_options=self.client.codec_options)
        self._server_ahead_seconds = hello["localTime"].timestamp() - time.monotonic()
        return hello

    def new_client(self, **options: Any) -> AsyncMongoClient[dict[str, Any]]:
        """Return another client, which the caller closes.

        Raises:
            InvalidRequest: When the driver does not take the options.
        """
        settings = self.settings
        try:
            return AsyncMongoClient(
                settings.address.uri,
                **{
                    "appname": "lightning-mongo",
                    # One connection that watches the server instead of two; a call that fails has it looked at, too.
                    "serverMonitoringMode": "poll",
                    **settings.client_options,
                    "serverSelectionTimeoutMS": int(settings.connect_seconds * 1e3),
                    "connectTimeoutMS": int(settings.connect_seconds * 1e3),
                    # PyMongo 4.20 sends a transaction number to a standalone server, which refuses it, when a
                    # connection breaks off in its handshake. Requests are repeated by `retried` in any case.
                    "retryWrites": False,
                    "w": "majority",
                    "journal": True,
                    "readPreference": "primary",
                    "tz_aware": True,
                    **options,
                },
            )
        except (ConfigurationError, ValueError, TypeError, OSError) as exc:
            # Not chained, nor quoted where there is a secret: the driver quotes what it does not understand.
            has_secret = "@" in settings.address.uri or any(map(_SECRET.search, map(str, settings.client_options)))
            why = "" if has_secret else f": {in_short(exc)}"
            raise InvalidRequest(
                f"{settings.address} cannot be used with these options{why}; look at client_options and at what stands "
                "after the ? in the uri"
            ) from None

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call returns that may be repeated, also when the server is away for a while.

        Raises:
            StoreUnavailable: When it is away for longer than `retry_seconds`, or this is closed meanwhile.
        """
        give_up: float | None = None
        seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    answer = await call()
            except OUT_OF_REACH as exc:
                now = time.monotonic()
                give_up = now + self.settings.retry_seconds if give_up is None else give_up
                self._note_away(now, exc)
                if self._closing.is_set() or now >= give_up:
                    raise StoreUnavailable(
                        f"{self.settings.address} could not be reached for {self.settings.retry_seconds:g} s: "
                        f"{in_short(exc)}"
                    ) from exc
            else:
                if self._away_since is not None:
                    self._note_back()
                return answer
            await pause(seconds, self._closing)
            seconds = min(2 * seconds, _LONGEST_PAUSE_SECONDS)

    async def find(
        self, name: str, wanted: Mapping[str, Any], projection: Mapping[str, int], **options: Any
    ) -> list[dict[str, Any]]:
        """Return what is wanted of a collection; the options are those of the driver's `find`."""
        return await self.retried(lambda: self.collection(name).find(wanted, projection, **options).to_list())

    async def bulk_write(self, name: str, operations: Sequence[Operation], session: Session | None = None) -> int:
        """Carry out operations, each whether or not another one meets a key that is there already.

        In a transaction, such a key is an error.

        Returns:
            How many documents were inserted, or found by an update.
        """
        if not operations:
            return 0
        try:
            done = await self.collection(name).bulk_write(operations, ordered=False, session=session)
        except BulkWriteError as exc:
            if session is not None:
                raise
            if is_away(exc):
                raise AutoReconnect(in_short(exc)) from exc
            refuse_all_but_duplicates(exc)
            details = exc.details or {}
            return int(details.get("nMatched", 0)) + int(details.get("nInserted", 0))
        return done.matched_count + done.inserted_count

    async def change(self, name: str, operations: Sequence[Operation]) -> int:
        """Do as `bulk_write` does, also when the server is away for a while."""
        return await self.retried(lambda: self.bulk_write(name, operations))

    async def write(self, name: str, writes: Sequence[Write]) -> list[bool]:
        """Carry out writes that may fail, in one call, and return which of them are there."""
        if await self.change(name, [write.operation for write in writes]) == len(writes):
            return [True] * len(writes)
        # The server says how many have failed, but not which. Or the call was repeated after its answer was lost.
        # Who has written again after us makes us believe that we lost; then we look, and decide anew.
        documents = await self.find(name, {"_id": {"$in": [write.id for write in writes]}}, {"written": 1})
        left = {document["written"] for document in documents}
        return [write.token in left for write in writes]

    async def insert(self, name: str, documents: Sequence[dict[str, Any]], *, as_one: bool) -> set[tuple[str, ...]]:
        """Insert documents of different ids, and return the keys of those that others brought before.

        Args:
            name: The collection.
            documents: Each with a token under `written`.
            as_one: Whether to keep all or none of them, where the server can.
        """
        tokens = {key_of(each): each["written"] for each in documents}
        there: dict[tuple[str, ...], str] = {}
        while True:
            operations = [InsertOne(each) for each in documents if key_of(each) not in there]
            insert = partial(self.bulk_write, name, operations)
            try:
                count = await (self.as_one(insert) if as_one else self.retried(insert))
            except BulkWriteError as exc:
                refuse_all_but_duplicates(exc)
                count = -1  # the transaction was undone
            if count == len(operations):
                # What is our own, a call has brought whose answer was lost.
                return {key for key, token in there.items() if token != tokens[key]}
            found = await self.find(name, {"_id": {"$in": [each["_id"] for each in documents]}}, {"written": 1})
            there = {key_of(each): each["written"] for each in found}

    async def as_one(self, write: Callable[[Session | None], Coroutine[Any, Any, T]]) -> T:
        """Carry out several writes: as a whole in a replica set, in their order on a standalone server.

        Args:
            write: Carries them out in this session, or without any. It may be called again.
        """
        if not self.is_replica_set:
            return await self.retried(lambda: write(None))

        async def in_transaction() -> T:
            async with self.client.start_session() as session:
                return await session.with_transaction(write)

        return await self.retried(in_transaction)

    def hurry(self) -> None:
        """End all waits for a server that is away."""
        self._closing.set()

    async def aclose(self) -> None:
        """Let go of the server."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def _note_away(self, now: float, exc: BaseException) -> None:
        if self._away_since is None:
            self._away_since = now
        elif not self._away_is_logged and now - self._away_since > _LOGGED_AFTER_SECONDS:
            self._away_is_logged = True
            logger.warning(
                "lightning.store_out_of_reach address=%s retry_seconds=%g: %s",
                self.settings.address,
                self.settings.retry_seconds,
                in_short(exc),
            )

    def _note_back(self) -> None:
        if self._away_is_logged and self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            logger.warning("lightning.store_reached_again address=%s away_seconds=%.1f", self.settings.address, seconds)
        self._away_since, self._away_is_logged = None, False
