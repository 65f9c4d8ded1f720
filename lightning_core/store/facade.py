"""The one implementation of the store's semantics: lifecycle, waits and deadlines, over any backend."""

import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest, InvalidTransition
from lightning_core.store.backend import StoreBackend
from lightning_core.store.base import LightningStore, LightningStoreCapabilities, LightningStoreStatistics
from lightning_core.store.clock import Clock, SystemClock
from lightning_core.store.documents import Documents
from lightning_core.store.parts.arguments import as_float, as_ids
from lightning_core.store.parts.documents import ResourcePart, SpanPart, WorkerPart
from lightning_core.store.parts.rollouts import AttemptPart, ClaimPart, RolloutPart
from lightning_core.store.records import Records
from lightning_core.store.run_end import RunEnd
from lightning_core.store.waits import PauseDetector, Waits, Watchdogs


class StoreFacade(RolloutPart, ClaimPart, AttemptPart, SpanPart, ResourcePart, WorkerPart):
    """A store over a backend.

    Deadlines are looked at before every operation, and, while anybody waits for something, when they come: there is
    no thread or task of the store's own when nobody waits.

    Args:
        backend: Where records are kept.
        run_id: The run to work for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
    """

    def __init__(
        self,
        backend: StoreBackend,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        _pauses: PauseDetector | None = None,
    ) -> None:
        lease = as_float("lease_seconds", lease_seconds)
        if lease <= 0:
            raise InvalidRequest(f"lease_seconds is {lease_seconds}; it is more than 0")
        self._backend = backend
        self._run_id = f"run-{secrets.token_hex(8)}" if run_id is None else run_id
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lease_seconds = lease
        self._opened = self._clock.monotonic()
        self._closed = False
        self._view_of: StoreFacade | None = None
        self._views: weakref.WeakSet[StoreFacade] = weakref.WeakSet()
        self._views_lock = threading.Lock()
        self._documents = Documents(backend, self._run_id, self._clock)
        self._pauses = pauses = PauseDetector(self._clock, lease) if _pauses is None else _pauses
        self._records = Records(backend, self._run_id, self._clock, self._documents, pauses, lease_seconds=lease)
        self._waits = Waits()
        self._watchdogs = Watchdogs(
            *(backend, self._run_id, self._clock, self._waits, pauses),
            *(self._records.expire, self._records.next_deadline),
        )
        self._unwatch = backend.watch(self._run_id, self._waits.note)
        self._run_ends: dict[str, RunEnd] = {}
        """By run; those of a view are its root's."""
        self._share_run_end(self)

    @property
    def run_id(self) -> str:
        return self._run_id

    def for_run(self, run_id: str) -> LightningStore:
        self._check_open()
        view = StoreFacade(
            self._backend,
            run_id=run_id,
            clock=self._clock,
            lease_seconds=self._lease_seconds,
            _pauses=self._pauses,
        )
        root = self if self._view_of is None else self._view_of
        view._view_of = root
        # Nobody closes a view that is merely forgotten.
        weakref.finalize(view, view._unwatch).atexit = False
        with root._views_lock:
            root._views.add(view)
            view._share_run_end(root)
        return view

    async def kept_runs(self) -> Sequence[str]:
        self._check_open()
        return await self._backend.kept_runs()

    @property
    def backend(self) -> StoreBackend:
        """Where the records are kept."""
        return self._backend

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._backend.capabilities

    @property
    def lease_seconds(self) -> float | None:
        return self._lease_seconds

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        return self._watchdogs.on_duty()

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        self._check_open()
        return self._backend.watch(self._run_id, lambda change: listener(change.rollout_id))

    async def statistics(self) -> LightningStoreStatistics:
        self._check_open()
        counts = await self._backend.count(self._run_id)
        return {
            "name": self._backend.name,
            "total_rollouts": counts["rollouts"],
            "total_attempts": counts["attempts"],
            "total_spans": counts["spans"],
            "total_resources": counts["resources"],
            "total_workers": counts["workers"],
            "uptime": self._clock.monotonic() - self._opened,
        }

    async def aclose(self) -> None:
        if self._closed:
            return
        self._close_view()
        if self._view_of is None:
            with self._views_lock:
                views = tuple(self._views)
            for view in views:
                view._close_view()
            await self._backend.aclose()

    # Deletion

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> int:
        rollout_ids = as_ids("rollout_ids", rollout_ids)
        await self._look()
        ended = []
        records = await self._backend.get_many(self._run_id, rollout_ids)
        for rollout_id, record in zip(rollout_ids, records, strict=True):
            if record is None:
                continue
            if record.rollout.status not in lifecycle.ENDED:
                raise InvalidTransition(
                    f"rollout {rollout_id} is {record.rollout.status!r}; cancel it before it is deleted"
                )
            ended.append(rollout_id)
        return await self._backend.delete_rollouts(self._run_id, ended)

    async def delete_run(self) -> None:
        self._check_open()
        await self._backend.delete_run(self._run_id)
        self._run_end.forget()

    # The run

    async def begin_run(self, *, request_id: str | None = None) -> None:
        self._check_open()
        await self._run_end.begin(request_id=request_id)

    async def end_run(self, *, request_id: str | None = None) -> None:
        self._check_open()
        await self._run_end.end(request_id=request_id)

    def _share_run_end(self, root: "StoreFacade") -> None:
        known = root._run_ends.get(self._run_id)
        if known is None:
            known = root._run_ends[self._run_id] = RunEnd(
                self._run_id, self._documents, is_shared=self._backend.is_shared
            )
        self._run_end = known
        self._run_end.tell(self._waits)

    def _close_view(self) -> None:
        if not self._closed:
            self._closed = True
            self._waits.close()
            self._unwatch()
