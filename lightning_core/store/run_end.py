"""Whether a run has ended: then there is no more work, also for those who wait for it."""

import math
import threading
import time
import weakref
from typing import Final

from lightning_core.errors import RunEnded
from lightning_core.store.base import LightningStore
from lightning_core.store.records import Documents, make_request_of
from lightning_core.store.waits import Waits

RUN_STATE: Final = "lightning.run"
"""Under which name it is kept, among the saved state."""


FRESH_SECONDS: Final = 0.25
"""How late the end of a run may be seen that other processes write; who waits is called when it is heard of."""


class RunEnd:
    """What all views of one run, in this process, know of its end. It is kept, so that it outlives the process.

    Args:
        run_id: The run.
        documents: Where it is kept.
        is_shared: Whether other processes may end and begin it, too: then it is looked up again and again.
    """

    def __init__(self, run_id: str, documents: Documents, *, is_shared: bool = False) -> None:
        self._run_id = run_id
        self._documents = documents
        self._is_shared = is_shared
        self._is_ended: bool | None = None
        self._asked = 0.0
        """When that was looked up, as `time.monotonic` says."""
        self._changes = 0
        self._lock = threading.Lock()
        self._waiting: weakref.WeakSet[Waits] = weakref.WeakSet()

    @property
    def is_ended(self) -> bool | None:
        """Whether the run has ended; None where it has to be looked up."""
        is_old = self._is_shared and time.monotonic() - self._asked > FRESH_SECONDS
        return None if is_old else self._is_ended

    def tell(self, waits: Waits) -> None:
        """Make these waiters look again when the run ends."""
        with self._lock:
            self._waiting.add(waits)

    async def check(self) -> None:
        """Return if there may be work.

        Raises:
            RunEnded: When the run has ended.
        """
        is_ended = self.is_ended
        if await self._look() if is_ended is None else is_ended:
            raise RunEnded(f"run {self._run_id} has ended; there is no more work")

    async def begin(self, *, request_id: str | None = None) -> None:
        """Let there be work again."""
        # One that changes nothing now is remembered, too: repeated after the run's end, it might.
        if await self._look() or request_id is not None:
            self._take(await self._keep(False, request_id))

    async def end(self, *, request_id: str | None = None) -> None:
        """Let there be no more work."""
        try:
            is_ended = await self._keep(True, request_id)
        except BaseException:
            self._take(True, is_kept=False)  # who works here is to hear of it all the same
            raise
        self._take(is_ended)

    def forget(self) -> None:
        """Look it up the next time: the run was deleted, or another process has ended it, or begun it again."""
        with self._lock:
            self._is_ended, self._changes = None, self._changes + 1

    async def _look(self) -> bool:
        changes, asked = self._changes, time.monotonic()
        document = await self._documents.find("state", RUN_STATE)
        is_ended = document is not None and bool(document.value["ended"])
        with self._lock:
            if self._changes != changes:  # it was begun or ended meanwhile
                return is_ended if self._is_ended is None else self._is_ended
            if not (is_ended and self._is_shared):  # when it begins again, its claims must look for work
                self._is_ended, self._asked = is_ended, asked
        return is_ended

    async def _keep(self, ended: bool, request_id: str | None) -> bool:
        request = make_request_of(request_id, "end_run" if ended else "begin_run")
        kept = await self._documents.change("state", RUN_STATE, lambda _: {"ended": ended}, request=request)
        return bool(kept["ended"])

    def _take(self, is_ended: bool, *, is_kept: bool = True) -> None:
        with self._lock:
            self._is_ended = None if self._is_shared and is_kept else is_ended
            self._asked, self._changes = math.inf, self._changes + 1
            waiting = tuple(self._waiting) if is_ended else ()
        for waits in waiting:
            waits.call_everyone()


SERVED_STATE: Final = "lightning.served"
"""Under which name it is kept, among the saved state of a run, when it was served last."""


async def served_run(store: LightningStore) -> tuple[LightningStore, bool]:
    """Choose the run that a server goes on with, when none was named.

    Args:
        store: What is served, for a run of its own, which is new.

    Returns:
        The store for the latest run that has not ended: the one that was served last, where several are left; and
        whether there is one. Else the store as it is.
    """
    chosen, latest = None, -1.0
    for run_id in await store.kept_runs():
        view = store.for_run(run_id)
        try:
            if await has_ended(view):
                continue
            served_at = float(await view.load_state(SERVED_STATE) or 0.0)
        finally:
            await view.aclose()
        if served_at >= latest:
            chosen, latest = run_id, served_at
    return (store, False) if chosen is None else (store.for_run(chosen), True)


async def note_served(store: LightningStore) -> None:
    """Keep that this run is served now, so that it is found again, also when nothing else is ever written of it."""
    await store.save_state(SERVED_STATE, time.time())


async def has_ended(store: LightningStore) -> bool:
    """Tell whether the end of a store's run is kept."""
    state = await store.load_state(RUN_STATE)
    return isinstance(state, dict) and bool(state.get("ended"))
