"""When the next record of each run is due, as far as this process knows."""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

from bson import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from lightning_core.store.backend import Change, Document
from lightning_core.store.run_end import RUN_STATE
from lightning_core.store.waits import Listeners
from lightning_core.types import RolloutStatus
from lightning_mongo import schema
from lightning_mongo.database import Database
from lightning_mongo.errors import OUT_OF_REACH, UNAUTHORIZED, in_short

FRESH_SECONDS = 0.25
"""How late the deadlines may be seen that others write; what this process writes is known at once."""


class _Known(NamedTuple):
    at: float | None
    asked: float
    """When the database was asked, by the monotonic clock."""


class Question:
    """The database is being asked when a run's next record is due; meanwhile earlier deadlines may be written."""

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.written: float | None = None


class Deadlines:
    """A time for each run before which nothing is due. Any thread may ask.

    Every request to a store asks what is due, and hardly ever is anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._questions: defaultdict[str, list[Question]] = defaultdict(list)

    def known(self, run_id: str) -> tuple[bool, float | None]:
        """Return whether it is known when the next record is due, and when; None for never."""
        known = self._known.get(run_id)
        if known is None or time.monotonic() - known.asked > FRESH_SECONDS:
            return False, None
        return True, known.at

    def written(self, run_id: str, deadline: float | None) -> None:
        """Note a deadline that a record has now."""
        if deadline is None:
            return
        with self._lock:
            known = self._known.get(run_id)
            if known is not None and (known.at is None or deadline < known.at):
                self._known[run_id] = known._replace(at=deadline)
            for question in self._questions.get(run_id, ()):
                question.written = _earlier(question.written, deadline)

    def ask(self, run_id: str) -> Question:
        """Note that the database is about to be asked."""
        question = Question()
        with self._lock:
            self._questions[run_id].append(question)
        return question

    def answered(self, run_id: str, question: Question, *, at: float | None, failed: bool = False) -> None:
        """Note what the database said."""
        with self._lock:
            self._questions[run_id].remove(question)
            if not self._questions[run_id]:
                del self._questions[run_id]
            if not failed:
                self._known[run_id] = _Known(_earlier(at, question.written), question.asked)


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


"""How late the end of a run may be seen that others write; who waits is called when it is heard of."""


class RunStates:
    """The documents that say whether runs have ended. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Document | None, float]] = {}
        self._changes = 0

    def known(self, run_id: str) -> tuple[bool, Document | None]:
        """Return whether the document is known, and what it is; None where there is none."""
        document, asked = self._known.get(run_id, (None, float("-inf")))
        return time.monotonic() - asked <= FRESH_SECONDS, document

    def ask(self) -> tuple[int, float]:
        """Note that the database is about to be asked; the answer goes with what this returns."""
        return self._changes, time.monotonic()

    def answered(self, run_id: str, question: tuple[int, float], document: Document | None) -> None:
        """Note what the database said, unless something has changed meanwhile.

        Not for a run that has ended: when it begins again, its claims must look for work.
        """
        changes, asked = question
        if document is not None and document.value["ended"]:
            return
        with self._lock:
            if changes == self._changes:
                self._known[run_id] = document, asked

    def changed(self, run_id: str) -> None:
        """Ask the database the next time."""
        with self._lock:
            self._changes += 1
            self._known.pop(run_id, None)


logger = logging.getLogger(__name__)

_PROJECTION = {"status": 1, "deadline": 1, "written": 1, "changed": 1}

_NOTHING_TO_DO: RolloutStatus = "running"
"""The kind of a change that leaves the status as it was: no caller waits for it."""

_QUEUED: RolloutStatus = "queuing"

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

    In a replica set by a change stream. On a standalone server, and where the user may not have streams, by asking each
    `poll_seconds` what has changed since, which is a short walk along an index.

    Args:
        database: The database, which is open when this starts.
        listeners: Whom to tell.
        deadlines: What else to tell.
        run_states: And what to tell of the ends of runs.
    """

    def __init__(self, database: Database, listeners: Listeners, deadlines: Deadlines, run_states: RunStates) -> None:
        self._database = database
        self._listeners = listeners
        self._deadlines = deadlines
        self._run_states = run_states
        self._task: asyncio.Task[None] | None = None
        self._works: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self._streams = False
        """Whether it waits for a stream's next change."""
        self._has_streams = True
        self._seen_until = 0.0
        """Up to when everything is known, in seconds since the epoch of the server."""
        self._told: dict[str, str] = {}
        """By rollout, the newest write that was told, of those that one looks back at."""
        self._tells_own = False
        """Whether to tell of what this store wrote: its answer may have been lost when the server went away."""
        self._warned_of = ""
        """The fault that was warned of last, so that one that comes each time is logged once."""

    async def start(self) -> None:
        """Begin, and return when nothing is missed any more that is written from now on."""
        self._seen_until = self._database.server_seconds()
        loop = asyncio.get_running_loop()
        self._works = loop.create_future()
        self._task = loop.create_task(self._follow(self._works))
        try:
            await self._works
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
                if self._database.is_replica_set and self._has_streams:
                    await self._stream(works)
                else:
                    await self._poll(works)
            except OperationFailure as exc:
                if self._stopping.is_set():
                    return
                if exc.code == UNAUTHORIZED and self._has_streams:
                    self._has_streams = False
                    logger.info("lightning.no_change_streams address=%s", self._database.settings.address)
                    continue
                await self._bear(exc, works)
            except (PyMongoError, *OUT_OF_REACH) as exc:
                await self._bear(exc, works)
            except Exception as exc:  # waiters have to hear of later changes, too
                self._warn(exc)
                await self._bear(exc, works)

    def _warn(self, exc: Exception) -> None:
        fault = f"{type(exc).__name__}: {exc}"
        if fault != self._warned_of:
            self._warned_of = fault
            logger.warning("lightning.news_interrupted address=%s", self._database.settings.address, exc_info=exc)

    async def _bear(self, exc: Exception, works: "asyncio.Future[None]") -> None:
        self._tells_own = True
        if not works.done():
            works.set_exception(exc)
            works.exception()  # the caller of `start` gets it
        logger.debug("lightning.news_interrupted address=%s: %s", self._database.settings.address, in_short(exc))
        await self._pause(_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

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
        first, end = f"{self._database.settings.partition}/", f"{self._database.settings.partition}0"
        own = {"$not": {"$regex": f"^{self._database.me}:"}}
        return [
            {
                "$match": {
                    "operationType": {"$in": ["insert", "update", "delete"]},
                    "documentKey._id.run": {"$gte": first, "$lt": end},  # "0" is what comes after "/"
                    "fullDocument.written": own,
                    "updateDescription.updatedFields.written": own,
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
            self._tell(id, values.get("status", _NOTHING_TO_DO), values.get("deadline"))

    # By asking

    async def _poll(self, works: "asyncio.Future[None]") -> None:
        since, swept = self._since(), time.monotonic()
        await self._look(since)
        if not works.done():
            works.set_result(None)
        while not self._stopping.is_set():
            await self._pause(self._database.settings.poll_seconds)
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
        told, self._told = self._told, {}
        newest = await self._look_at_rollouts(since, told)
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

    async def _look_at_rollouts(self, since: Timestamp, told: dict[str, str] | None = None) -> Timestamp:
        runs = self._runs()
        if not runs:
            return since
        told = self._told if told is None else told
        rollouts = self._database.collection(schema.ROLLOUTS)
        async with asyncio.timeout(_DEAD_SECONDS):
            found = await rollouts.find(
                {"_id.run": {"$in": runs}, "changed": {"$gt": since}}, _PROJECTION, sort=[("changed", 1)]
            ).to_list()
        for document in found:
            id, token = document["_id"], document["written"]
            name = f"{id['run']}\0{id['id']}"
            if (self._tells_own or not self._database.is_own(token)) and told.get(name) != token:
                self._tell(id, document["status"], document.get("deadline"))
            self._told[name] = token
        return found[-1]["changed"] if found else since

    def _runs(self) -> list[str]:
        return [self._database.run_key(run_id) for run_id in self._listeners.runs()]

    # To those who wait

    def _tell(self, id: dict[str, str], status: RolloutStatus | None, deadline: float | None) -> None:
        run_id = self._database.run_of(id["run"])
        self._deadlines.written(run_id, deadline)
        self._listeners.tell([Change(run_id, id["id"], status, deadline)])

    def _tell_of_end(self, key: str) -> None:
        # The longest waiter for work is called, finds the run ended, and hands the call on to the next.
        run_id = self._database.run_of(key)
        self._run_states.changed(run_id)
        self._listeners.tell([Change(run_id, "", _QUEUED, None)])
