"""The connection: opened with the first request, and patient with a server that is away for a while."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_plus

from pymongo import AsyncMongoClient, DeleteMany, InsertOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, BulkWriteError, ConfigurationError

from lightning_core.errors import InvalidRequest, StoreUnavailable
from lightning_mongo import schema
from lightning_mongo.errors import OUT_OF_REACH, Address, duplicates, in_short, is_away

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


@dataclass(frozen=True, slots=True)
class Settings:
    """How a database is used."""

    address: Address
    database: str
    partition: str
    connect_seconds: float
    retry_seconds: float
    poll_seconds: float
    keep_seconds: float | None
    client_options: Mapping[str, Any] = field(repr=False)


class Written(NamedTuple):
    """The results of several operations."""

    matched: int
    """How many updates found what they were for."""
    duplicates: frozenset[int]
    """Which operations met a key that was there already."""


class Companion(Protocol):
    """What works beside the requests for as long as the database is open."""

    async def start(self) -> None:
        """Begin; return when it works."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


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
        self._opening: asyncio.Task[None] | None = None
        """The attempt that is under way, which all requests share."""
        self._closing = asyncio.Event()
        self._companion: Companion | None = None
        self._server_ahead_seconds = 0.0
        """A `time.monotonic` value."""
        self._away_since: float | None = None
        self._away_is_logged = False

    def run_key(self, run_id: str) -> str:
        """Return what a run is called in this partition."""
        return f"{self.settings.partition}/{run_id}"

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

    async def ready(self, companion: Companion) -> None:
        """Open the database, if it is not open yet.

        Args:
            companion: Starts with it, and stops at its end.

        Raises:
            StoreUnavailable: When no server answers in time.
            UnusableDatabase: When it is of a newer version.
        """
        if self._companion is not None:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._begin(companion))
            self._opening.add_done_callback(self._note_opened)
        await asyncio.shield(self._opening)

    async def _begin(self, companion: Companion) -> None:
        await self._open()
        try:
            await companion.start()
        except BaseException:
            await self._close_client()
            raise
        self._companion = companion

    def _note_opened(self, attempt: "asyncio.Task[None]") -> None:
        self._opening = None  # the next request makes another attempt, if this one failed
        if not attempt.cancelled():
            attempt.exception()  # the caller may be gone

    async def _open(self) -> None:
        settings = self.settings
        self._client = self.new_client()
        try:
            try:
                hello = await self.hello()
            except OUT_OF_REACH as exc:
                raise StoreUnavailable(
                    f"no MongoDB answers at {settings.address} within {settings.connect_seconds:g} s: {in_short(exc)}; "
                    "start it, or check the uri"
                ) from exc
            self.is_replica_set = "setName" in hello or hello.get("msg") == "isdbgrid"
            await schema.prepare(self._client[settings.database], settings.address)
        except BaseException:
            await self._close_client()
            raise

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
        try:
            return self._new_client(options)
        except (ConfigurationError, ValueError, TypeError, OSError) as exc:
            # Not chained: the driver quotes what it does not understand.
            raise InvalidRequest(
                f"{self.settings.address} cannot be used with these options{self._why(exc)}; look at client_options "
                "and at what stands after the ? in the uri"
            ) from None

    def _why(self, exc: Exception) -> str:
        uri, said = self.settings.address.uri, in_short(exc)
        hidden = [str(value) for name, value in self.settings.client_options.items() if _SECRET.search(str(name))]
        if "@" in uri:
            password = uri.rpartition("@")[0].partition("://")[2].partition(":")[2]
            hidden += [*re.split("[:/?#@]", password), unquote_plus(password)]
        return "" if any(each and each.lower() in said.lower() for each in hidden) else f": {said}"

    def _new_client(self, options: dict[str, Any]) -> AsyncMongoClient[dict[str, Any]]:
        settings = self.settings
        return AsyncMongoClient(
            settings.address.uri,
            **{
                "appname": "lightning-mongo",
                # One connection that watches the server instead of two; a call that fails has it looked at, too.
                "serverMonitoringMode": "poll",
                **settings.client_options,
                "serverSelectionTimeoutMS": int(settings.connect_seconds * 1e3),
                "connectTimeoutMS": int(settings.connect_seconds * 1e3),
                # PyMongo 4.20 sends a transaction number to a standalone server, which refuses it, when a connection
                # breaks off in its handshake. Requests are repeated by `retried` in any case.
                "retryWrites": False,
                "w": "majority",
                "journal": True,
                "readPreference": "primary",
                "tz_aware": True,
                **options,
            },
        )

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call returns that may be repeated, also when the server is away for a while.

        Raises:
            StoreUnavailable: When it is away for longer than `retry_seconds`, or this is closed meanwhile.
        """
        give_up: float | None = None
        pause = _FIRST_PAUSE_SECONDS
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
            await self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def bulk_write(
        self, collection: str, operations: Sequence[Operation], *, session: Session | None = None
    ) -> Written:
        """Carry out operations, each whether or not another one meets a key that is there already.

        In a transaction, such a key is an error.
        """
        if not operations:
            return Written(0, frozenset())
        try:
            done = await self.collection(collection).bulk_write(operations, ordered=False, session=session)
        except BulkWriteError as exc:
            if session is not None:
                raise
            if is_away(exc):
                raise AutoReconnect(in_short(exc)) from exc
            return Written((exc.details or {}).get("nMatched", 0), frozenset(duplicates(exc)))
        return Written(done.matched_count, frozenset())

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
        if self._opening is not None:
            opening = self._opening
            opening.cancel()
            await asyncio.wait((opening,))
        if self._companion is not None:
            await self._companion.stop()
        await self._close_client()

    async def _close_client(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    def _note_away(self, now: float, exc: BaseException) -> None:
        if self._away_since is None:
            self._away_since = now
        elif not self._away_is_logged and now - self._away_since > _LOGGED_AFTER_SECONDS:
            self._away_is_logged = True
            logger.warning(
                "lightning.store_out_of_reach address=%s retry_seconds=%g: %s",
                *(self.settings.address, self.settings.retry_seconds, in_short(exc)),
            )

    def _note_back(self) -> None:
        if self._away_is_logged and self._away_since is not None:
            logger.warning(
                "lightning.store_reached_again address=%s away_seconds=%.1f",
                *(self.settings.address, time.monotonic() - self._away_since),
            )
        self._away_since, self._away_is_logged = None, False
