"""A run as far as it is known by now: brought up to date when somebody asks, and when its store tells of changes."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from lightning_core.errors import ConfigError, LightningError, NotFound, StoreError
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.stored import copied, find
from lightning_core.store import LightningStore
from lightning_core.types import RolloutStatus
from lightning_viewer.aggregates import Aggregates, Filter
from lightning_viewer.collect import summarise
from lightning_viewer.compare import Side, common_samples
from lightning_viewer.reading import Follower

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""The time between two looks at a store that cannot tell of changes: that of another process."""

REST_SHARE = 3
"""After a look, so many times as long as it took passes before the next: a viewer takes little of the machine."""

PATIENCE_SECONDS = 0.2
"""How long an answer waits for a look at the store. After that it has what is known, which may be from before."""

RETRY_SECONDS = 1.0
"""The time between two looks at a store that could not be read."""

PING_SECONDS = 5.0
"""After how long without a change a client is told that the connection stands."""

MAX_TOLD = 20_000
"""Of how many rollouts it is kept that they changed; after more all are read again that had not ended."""

Action = Literal["cancel", "requeue"]
"""What can be done to a rollout that has not ended."""

_STATUS_AFTER: Mapping[Action, RolloutStatus] = {"cancel": "cancelled", "requeue": "requeuing"}


class Live:
    """A run that somebody looks at. All of its methods are called in one event loop.

    Args:
        store: The run's store, which stays open; None to read copies of the one in the folder.
        folder: The run's folder, where there is one on this machine.
        root: The folder of runs that this one may be compared with.
        closing: Set when the server stops.
    """

    def __init__(
        self,
        store: LightningStore | None = None,
        folder: RunFolder | None = None,
        *,
        root: Path | None = None,
        closing: asyncio.Event | None = None,
    ) -> None:
        self.folder = folder
        self.root = root
        self.can_act = store is not None
        """Whether rollouts can be queued again or cancelled: not in a copy."""
        self.revision = 0
        """Counts the looks that found something changed."""
        self._closing = closing or asyncio.Event()
        self._store = store
        self._copies = AsyncExitStack()
        self._follower = Follower()
        self._lock = asyncio.Lock()
        """Of those who read a copy, and of a look that replaces it."""
        self._looking: asyncio.Task[None] | None = None
        self._is_whole = True
        """Whether the last look read all that it was to read."""
        self._failure: str | None = None
        """Why it did not."""
        self._as_of: float | None = None
        """Until when all changes are known, a `time.monotonic` value; None before the first look."""
        self._watchers: set[asyncio.Event] = set()
        self._guard = threading.Lock()
        self._changed_ids: set[str] | None = None
        """The rollouts that the store has told of since the last look; None where it did not, or of too many."""
        self._unwatch: Callable[[], None] | None = None
        """Stops the store's telling; None where it does not tell."""
        self._files: tuple[object, ...] | None = None
        self._looked_at = self._look_took = self._checked_at = 0.0
        self._summary: tuple[int, dict[str, Any]] | None = None

    @property
    def run_id(self) -> str:
        """The run."""
        if self.folder is not None:
            return self.folder.run_id
        assert self._store is not None
        return self._store.run_id

    def is_of(self, store: LightningStore) -> bool:
        """Whether this shows that store."""
        return self._store is store

    async def aclose(self) -> None:
        """Remove the copy of the store, and listen to it no more."""
        self.stop_listening()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        async with self._lock:
            await self._copies.aclose()

    def stop_listening(self) -> None:
        """Listen to the store no more. Can be called again."""
        if self._unwatch is not None:
            self._unwatch()

    # What is known

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[LightningStore]:
        """Give the store, or the newest copy of it, which stays open during the block. Do not look in there."""
        await self._catch_up()
        async with nullcontext() if self.can_act else self._lock:
            assert self._store is not None
            yield self._store

    async def known(self) -> Aggregates:
        """Return what is known of all rollouts.

        Raises:
            RunFolderError: When nothing is known yet, since the run has no store in its folder.
            StoreError: When nothing is known yet, since the store cannot be read.
        """
        await self._catch_up()
        return self._follower.known

    async def summary(self) -> dict[str, Any]:
        """Return what the pages show of the run as a whole.

        Raises:
            RunFolderError: When a file of the run is damaged.
        """
        known = await self.known()
        if self._summary is None or self._summary[0] != self.revision:
            began = time.monotonic()
            self._summary = (self.revision, self._summarise(known))
            self._look_took += time.monotonic() - began
        return self._summary[1]

    def _summarise(self, known: Aggregates) -> dict[str, Any]:
        rows = known.find(Filter())
        summary = summarise(known, self.folder, self.run_id)
        rewards = [row.reward for row in rows if row.reward is not None]
        return {
            **summary,
            "comparison": summary["comparison"] or _compare_now(known, summary["resources"]),
            "revision": self.revision,
            "can_act": self.can_act,
            "can_compare_runs": self.root is not None,
            "is_copy": not self.can_act,
            "modes": sorted({row.mode or "other" for row in rows}),
            "statuses": sorted({row.status for row in rows}),
            "training_steps": sorted({row.step for row in rows if row.step is not None}),
            "reward_range": [min(rewards, default=None), max(rewards, default=None)],
        }

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        """Return a rollout with its input, its attempts, and how often its sample was run.

        Raises:
            NotFound: When the run has none of this id.
        """
        async with self.reading() as store:
            known = self._follower.known
            row, rollout = known.row(rollout_id), await store.get_rollout_by_id(rollout_id)
            tried = await store.query_attempts(rollout_id) if rollout is not None else ()
        if row is None or rollout is None:
            raise NotFound(f"run {self.run_id} has no rollout {rollout_id!r}")
        shown = {"attempt_id", "status", "worker_id", "start_time", "end_time"}
        attempts = [each.model_dump(include=shown) for each in tried]
        times_run = len(known.find(Filter(sample=row["sample"])))
        return {**row, "input": rollout.input, "times_run": times_run, "tries": attempts}

    async def workers(self) -> list[dict[str, Any]]:
        """Return the workers of the run, and what each works on."""
        async with self.reading() as store:
            known, workers = self._follower.known, await store.query_workers()
        records = []
        for each in workers:
            row = known.row(each.current_rollout_id or "")
            about = {"rollout": None, "input": None}
            if row is not None:
                about = {"rollout": row["id"], "input": known.inputs([row["sample"]])[row["sample"]]}
            records.append({**each.model_dump(), **about})
        return records

    async def act(self, rollout_id: str, action: Action) -> None:
        """Cancel a rollout that has not ended, or queue it again.

        Raises:
            NotFound: When there is no such rollout.
            InvalidTransition: When it has ended.
        """
        assert self._store is not None
        await self._store.update_rollout(rollout_id, status=_STATUS_AFTER[action])
        if self._looking is not None:  # it may have begun before
            await asyncio.wait([self._looking])
        self._looked_at = 0.0
        await self.look()

    # What changes

    async def look(self) -> None:
        """Bring up to date what is known, unless that was done just now.

        Raises:
            RunFolderError: When the run has no store in its folder.
            StoreError: When the store cannot be read.
        """
        await asyncio.shield(self._begin_look())  # it goes on when a client leaves: others wait for it, too

    async def _catch_up(self) -> None:
        """Look, and wait for the end of it: not for long where something is known already."""
        if self._as_of is None:
            await self.look()
        else:
            await asyncio.wait([self._begin_look()], timeout=PATIENCE_SECONDS)

    def _begin_look(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look at a store")
            self._looking.add_done_callback(self._end_look)
        return self._looking

    def _end_look(self, looking: asyncio.Task[None]) -> None:
        self._checked_at = time.monotonic()
        failure = None if looking.cancelled() else looking.exception()
        # The failure of the first look is raised where that was asked for; the run of a server is not known then.
        had_looked = self._as_of is not None
        if failure is not None and self._failure is None and had_looked:  # once, however many clients, and looks
            is_known = isinstance(failure, (LightningError, OSError))
            logger.warning(
                "lightning.live_page_not_updated run_id=%s: %s",
                self.run_id,
                failure,
                exc_info=None if is_known else failure,
            )
        before, self._failure = self._failure, None if failure is None else str(failure) or type(failure).__name__
        if before != self._failure:
            self._wake()

    async def _look(self) -> None:
        began = time.monotonic()
        if began < self._looked_at + self._look_took * REST_SHARE:
            return
        files = self._read_files()
        if self._files == files and not self.can_act and not self._follower.is_checking:
            self._as_of = began
            return
        is_first = self._as_of is None
        follower = self._follower if self._is_whole else Follower()  # of the other some may have been read
        self._is_whole = False
        changed = await self._read(follower, is_changed=self._files != files) or self._files != files
        self._files = files
        self._follower, self._is_whole, self._as_of = follower, True, began
        self._looked_at = time.monotonic()
        if not is_first:  # the first look reads everything, and is no measure of the others
            self._look_took = self._looked_at - began
        if changed:
            self.revision += 1
            self._wake()

    async def _read(self, follower: Follower, *, is_changed: bool) -> bool:
        """Return whether a rollout is new or has changed."""
        if self.folder is not None and not self.can_act and (is_changed or self._store is None):
            async with AsyncExitStack() as copies:
                newer = await copies.enter_async_context(copied(self.folder))
                follower.check_all()
                changed = await follower.update(newer)
                async with self._lock:
                    self._store = newer
                    earlier, self._copies = self._copies, copies.pop_all()
                    await earlier.aclose()
            return bool(changed)
        assert self._store is not None
        if self.can_act and self._unwatch is None and not self._closing.is_set():
            self._loop = asyncio.get_running_loop()
            self._unwatch = self._store.watch(self._hear)
        with self._guard:
            changed_ids, self._changed_ids = self._changed_ids, None if self._unwatch is None else set()
        return bool(await follower.update(self._store, changed_ids))

    def _read_files(self) -> tuple[object, ...]:
        """Return something that changes when a file of the run does."""
        if self.folder is None:
            return ()
        paths = [self.folder.manifest_file, self.folder.metrics_file, self.folder.best_file]
        if not self.can_act:
            paths += [self.folder.store_file, Path(f"{self.folder.store_file}-wal")]
        return (self.folder.lock.owner(), *map(_state_of, paths))

    async def changes(self, after: int) -> AsyncGenerator[dict[str, Any]]:
        """Tell what changes, until the server stops.

        Args:
            after: The revision that the client has.

        Yields:
            Where something has changed, and at least every few seconds: `revision`, `age`, for how many seconds changes
            may not be known yet (None before the first look), and `failure`, why the store could not be read.
        """
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        sent_at, failure = -PING_SECONDS, self._failure
        try:
            while not self._closing.is_set():
                watcher.clear()
                if (rest := self._until_look()) <= 0:
                    self._begin_look()
                    rest = PING_SECONDS
                now = time.monotonic()
                if after != self.revision or failure != self._failure or now - sent_at >= PING_SECONDS:
                    after, failure, sent_at = self.revision, self._failure, now
                    yield {"revision": after, "age": self._age(), "failure": failure}
                await _first_of(watcher, self._closing, seconds=min(rest, sent_at + PING_SECONDS - time.monotonic()))
        finally:
            self._watchers.discard(watcher)

    def _until_look(self) -> float:
        """Return how many seconds the next look is away; a look that goes on tells when it ends."""
        if self._looking is not None and not self._looking.done():
            return PING_SECONDS
        pause = LOOK_SECONDS if self._failure is None else RETRY_SECONDS
        with self._guard:
            if self._unwatch is not None and self._failure is None:
                pause = 0.0 if self._changed_ids is None or self._changed_ids else PING_SECONDS
        return max(self._looked_at + self._look_took * REST_SHARE, self._checked_at + pause) - time.monotonic()

    def _age(self) -> float | None:
        with self._guard:
            if self._unwatch is not None and self._is_whole and self._changed_ids is not None and not self._changed_ids:
                return 0.0
        return None if self._as_of is None else round(time.monotonic() - self._as_of, 3)

    def _hear(self, rollout_id: str) -> None:
        """Take note of a change. The store calls it, from any thread."""
        with self._guard:
            is_first = self._changed_ids is not None and not self._changed_ids
            if is_first and self._is_whole:  # all that was before it is known
                self._as_of = time.monotonic()
            if self._changed_ids is not None:
                self._changed_ids.add(rollout_id)
                if len(self._changed_ids) > MAX_TOLD:
                    self._changed_ids = None
        if is_first:  # of others the watchers know already
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the server's event loop is closed
                self.stop_listening()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()


@asynccontextmanager
async def opened(
    run: str | None, url: str | None, *, root: Path, key: str | None, closing: asyncio.Event | None = None
) -> AsyncIterator[Live]:
    """Look at a run during the block, for the first time before it.

    Args:
        run: The run in `root`; None for the latest one.
        url: The server whose store's run is looked at instead; None for a run in `root`.
        root: The folder of all runs.
        key: What the server is told; None for no key.
        closing: See `Live`.

    Raises:
        ConfigError: When the run cannot be read.
        RunFolderError: When there is no such run.
    """
    store: LightningStore | None = None
    if url is None:
        live = Live(folder=find(root, run), root=root, closing=closing)
    elif run is not None:
        raise ConfigError(f"--store {url} has its own run; leave {run} out")
    else:
        options = {"name": "http", "url": url, "key": key or "", "retry_seconds": 1.0}
        store = default_registry().build("stores", options, expected=LightningStore)
        live = Live(store, closing=closing)
    try:
        try:
            await live.look()
        except StoreError as exc:
            raise ConfigError(str(exc)) from exc
        yield live
    finally:
        await live.aclose()
        if store is not None:
            await store.aclose()


def _compare_now(known: Aggregates, versions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Compare the first version with the best so far, as the result of a run does at its end."""
    best = next((number for number, each in enumerate(versions) if each["is_best"]), 0)
    if not versions:
        return None
    measured, _, _ = common_samples(*(Side("", known, number + 1, False) for number in (0, best)))
    if measured["before"] is None or measured["after"] is None:
        return None
    return measured if best else {**measured, "after": None, "difference": None}


def _state_of(path: Path) -> object:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    """Return when one of the events is set, or the time is over."""
    tasks = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
