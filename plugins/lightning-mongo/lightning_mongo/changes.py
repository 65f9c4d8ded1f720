"""What others write, and when the next record of each run is due, as far as this process knows."""

import asyncio
import logging
import math
import threading
import time
from typing import Any

from bson import Timestamp
from pymongo.errors import PyMongoError

from lightning_core.store.backend import Change
from lightning_core.store.run_end import RUN_STATE
from lightning_core.store.waits import Listeners
from lightning_core.types import RolloutStatus
from lightning_mongo import schema
from lightning_mongo.database import Database, pause
from lightning_mongo.errors import OUT_OF_REACH, in_short

logger = logging.getLogger(__name__)

FRESH_SECONDS = 0.25
"""How late the deadlines may be seen that others write; what this process writes is known at once."""


class Deadlines:
    """A time for each run before which nothing is due; infinity for never. Any thread may ask.

    Every request to a store asks what is due, and hardly ever is anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, float]] = {}
        """By run, and when the database was asked, as `time.monotonic` says."""
        self._written: dict[str, float] = {}
        """The earliest that was written since the database was asked."""

    def known(self, run_id: str) -> float | None:
        """Return when the next record is due; None where that is not known."""
        at, asked = self._known.get(run_id, (math.inf, -math.inf))
        return at if time.monotonic() - asked <= FRESH_SECONDS else None

    def written(self, run_id: str, deadline: float | None) -> None:
        """Note a deadline that a record has now."""
        if deadline is None:
            return
        with self._lock:
            at, asked = self._known.get(run_id, (math.inf, -math.inf))
            self._known[run_id] = min(at, deadline), asked
            self._written[run_id] = min(self._written.get(run_id, math.inf), deadline)

    def asked(self, run_id: str) -> float:
        """Note that the database is about to be asked, once at a time; the answer goes with what this returns."""
        with self._lock:
            self._written.pop(run_id, None)
        return time.monotonic()

    def answered(self, run_id: str, asked: float, at: float) -> None:
        """Note what the database said."""
        with self._lock:
            self._known[run_id] = min(at, self._written.get(run_id, math.inf)), asked


_PROJECTION = {"status": 1, "deadline": 1, "written": 1, "changed": 1}

_STREAM_WAITS_SECONDS = 1.0
_DEAD_SECONDS = 30.0
"""How long a stream may be silent that has to say something each time that it waited."""
_PAUSE_SECONDS = 0.2
"""Before a stream or a poll that broke off is begun anew."""
_OVERLAP_SECONDS = 2
"""A write is seen a moment after the time that it bears, perhaps after a later one: so one looks back."""
_SWEEP_SECONDS = 1.0
_STOP_SECONDS = 5.0


class News:
    """Tells listeners, and the deadlines, of what others write. Each change is told at least once.

    In a replica set by a change stream. On a standalone server by asking each `poll_milliseconds` what has changed
    since, which is a short walk along an index.

    Args:
        database: The database, which is open when this starts.
        listeners: Whom to tell.
        deadlines: What else to tell.
    """

    def __init__(self, database: Database, listeners: Listeners, deadlines: Deadlines) -> None:
        self._database = database
        self._listeners = listeners
        self._deadlines = deadlines
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._streams = False
        """Whether it waits for a stream's next change."""
        self._seen_until = 0.0
        """Up to when everything is known, in seconds since the epoch of the server."""
        self._reported: dict[str, str] = {}
        """By rollout, the newest write that was told, of those that one looks back at."""
        self._tells_own = False
        """Whether to tell of what this store wrote: its answer may have been lost when the server went away."""
        self._warned_of = ""
        """The fault that was warned of last, so that one that comes each time is logged once."""

    async def start(self) -> None:
        """Begin, and return when nothing is missed any more that is written from now on."""
        self._seen_until = self._database.server_seconds()
        loop = asyncio.get_running_loop()
        works = loop.create_future()
        self._task = loop.create_task(self._follow(works))
        try:
            await works
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._stopping.set()
        # What is cancelled while it connects, the driver leaves open. A stream has its one connection, and waits.
        if self._streams:
            task.cancel()
        _, late = await asyncio.wait((task,), timeout=_STOP_SECONDS)
        if late:
            task.cancel()
            await asyncio.wait((task,))

    async def _follow(self, works: "asyncio.Future[None]") -> None:
        while not self._stopping.is_set():
            try:
                if self._database.is_replica_set:
                    await self._stream(works)
                else:
                    await self._poll(works)
            except Exception as exc:  # waiters have to hear of later changes, too
                await self._bear(exc, works)

    async def _bear(self, exc: Exception, works: "asyncio.Future[None]") -> None:
        self._tells_own = True
        if not works.done():
            works.set_exception(exc)
            works.exception()  # the caller of `start` gets it
        address, fault = self._database.settings.address, f"{type(exc).__name__}: {in_short(exc)}"
        if not isinstance(exc, (PyMongoError, *OUT_OF_REACH)) and fault != self._warned_of:
            self._warned_of = fault
            logger.warning("lightning.news_interrupted address=%s", address, exc_info=exc)
        logger.debug("lightning.news_interrupted address=%s: %s", address, fault)
        await pause(_PAUSE_SECONDS, self._stopping)

    # By a change stream

    async def _stream(self, works: "asyncio.Future[None]") -> None:
        name = self._database.settings.database
        async with (
            self._database.new_client(maxPoolSize=1) as client,
            await client[name].watch(self._pipeline(), max_await_time_ms=int(_STREAM_WAITS_SECONDS * 1e3)) as stream,
        ):
            await self._look(self._since())  # what was written before the stream began
            if not works.done():
                works.set_result(None)
            try:
                self._streams = True
                while stream.alive and not self._stopping.is_set():
                    async with asyncio.timeout(_DEAD_SECONDS):
                        event = await stream.try_next()
                    self._seen_until = self._database.server_seconds()
                    if event is not None:
                        self._tell_event(event)
            finally:
                self._streams = False

    def _pipeline(self) -> list[dict[str, Any]]:
        first, end = self._database.run_keys
        others = {"$not": {"$regex": f"^{self._database.me}:"}}
        return [
            {
                "$match": {
                    "operationType": {"$in": ["insert", "update", "delete"]},
                    "documentKey._id.run": {"$gte": first, "$lt": end},
                    "fullDocument.written": others,
                    "updateDescription.updatedFields.written": others,
                    "$or": [
                        {"ns.coll": schema.ROLLOUTS},
                        {
                            "ns.coll": schema.DOCUMENTS,
                            "documentKey._id.kind": "state",
                            "documentKey._id.key": RUN_STATE,
                        },
                    ],
                }
            },
            {
                "$project": {
                    "operationType": 1,
                    "ns": 1,
                    "documentKey": 1,
                    "fullDocument.status": 1,
                    "fullDocument.deadline": 1,
                    "updateDescription.updatedFields.status": 1,
                    "updateDescription.updatedFields.deadline": 1,
                }
            },
        ]

    def _tell_event(self, event: dict[str, Any]) -> None:
        id = event["documentKey"]["_id"]
        if event["ns"]["coll"] == schema.DOCUMENTS:
            self._tell_of_end(id["run"])
        elif event["operationType"] == "delete":
            self._tell(id, None, None)
        else:
            values = event.get("fullDocument") or event.get("updateDescription", {}).get("updatedFields", {})
            # For a change that leaves the status as it was no caller waits, as for one that runs.
            self._tell(id, values.get("status", "running"), values.get("deadline"))

    # By asking

    async def _poll(self, works: "asyncio.Future[None]") -> None:
        poll_seconds = self._database.settings.poll_milliseconds / 1e3
        since, swept = self._since(), time.monotonic()
        await self._look(since)
        if not works.done():
            works.set_result(None)
        while not self._stopping.is_set():
            await pause(poll_seconds, self._stopping)
            sweeps = time.monotonic() - swept >= _SWEEP_SECONDS
            if sweeps:
                async with asyncio.timeout(_DEAD_SECONDS):
                    await self._database.hello()
            asked = self._database.server_seconds()
            if not sweeps:
                since = await self._look_at_rollouts(since)
            else:
                since, swept = await self._look(self._since()), time.monotonic()
            self._seen_until = asked

    def _since(self) -> Timestamp:
        return Timestamp(int(self._seen_until) - _OVERLAP_SECONDS, 0)

    async def _look(self, since: Timestamp) -> Timestamp:
        """Tell of everything that was written since then, and return when the newest of it was."""
        runs = self._runs()
        if not runs:
            return since
        lately = {"_id.run": {"$in": runs}, "changed": {"$gt": since}}
        reported, self._reported = self._reported, {}
        newest = await self._look_at_rollouts(since, reported)
        async with asyncio.timeout(_DEAD_SECONDS):
            deleted = await self._database.collection(schema.DELETIONS).find(lately, {"_id": 1}).to_list()
            ended = (
                await self._database.collection(schema.DOCUMENTS)
                .find({**lately, "_id.kind": "state", "_id.key": RUN_STATE}, {"written": 1})
                .to_list()
            )
        for document in deleted:
            self._tell(document["_id"], None, None)
        for document in ended:
            if not self._database.is_own(document["written"]):
                self._tell_of_end(document["_id"]["run"])
        self._tells_own = False
        return newest

    async def _look_at_rollouts(self, since: Timestamp, reported: dict[str, str] | None = None) -> Timestamp:
        runs = self._runs()
        if not runs:
            return since
        reported = self._reported if reported is None else reported
        rollouts = self._database.collection(schema.ROLLOUTS)
        async with asyncio.timeout(_DEAD_SECONDS):
            documents = await rollouts.find(
                {"_id.run": {"$in": runs}, "changed": {"$gt": since}}, _PROJECTION, sort=[("changed", 1)]
            ).to_list()
        for document in documents:
            id, token = document["_id"], document["written"]
            name = f"{id['run']}\0{id['id']}"
            if (self._tells_own or not self._database.is_own(token)) and reported.get(name) != token:
                self._tell(id, document["status"], document.get("deadline"))
            self._reported[name] = token
        return documents[-1]["changed"] if documents else since

    def _runs(self) -> list[str]:
        return [self._database.run_key(run_id) for run_id in self._listeners.runs()]

    # To those who wait

    def _tell(self, id: dict[str, str], status: RolloutStatus | None, deadline: float | None) -> None:
        run_id = self._database.run_of(id["run"])
        self._deadlines.written(run_id, deadline)
        self._listeners.tell([Change(run_id, id["id"], status, deadline)])

    def _tell_of_end(self, key: str) -> None:
        # The longest waiter for work is called, finds the run ended, and hands the call on to the next.
        self._listeners.tell([Change(self._database.run_of(key), "", "queuing", None)])
