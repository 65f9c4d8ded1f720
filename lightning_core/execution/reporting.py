"""What the store hears of a runner process besides its work: plugins that have failed there."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lightning_core.errors import StoreError
from lightning_core.store import UNSET, LightningStore
from lightning_core.store.base import Unset
from lightning_core.store.http.forwarding import ForwardingStore
from lightning_core.types import AttemptedRollout, Worker

logger = logging.getLogger(__name__)

FAILED_HOOKS: Final = "failed_hooks"
"""Where a heartbeat says which plugins have failed in its process: a list of mappings with `plugin`, `hook`, `cause`
and `count`."""


class ReportingStore(ForwardingStore):
    """The store of a runner process: heartbeats of one of its workers say what plugins have failed in it.

    They also say so before a worker asks for more work, so that nothing is left to say when there is none.

    Args:
        store: The store.
        failed: Returns what has failed so far, as `FAILED_HOOKS` has it.
    """

    def __init__(self, store: LightningStore, failed: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._store = store
        self._failed = failed
        self._told: Sequence[Mapping[str, Any]] = []
        self._teller: str | None = None
        """The worker that tells. One that sends no heartbeats has no lease, and is not to be given one."""
        self._stats: Mapping[str, Any] = {}

    def target(self) -> LightningStore:
        return self._store

    async def tell(self) -> None:
        """Tell what has not been told, if anything."""
        if self._teller is not None and self._failed() != self._told:
            # Of failed hooks only: what the worker executes is for its own heartbeats to say.
            await self.update_worker(self._teller, self._stats, attempts=())

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        attempts: Sequence[tuple[str, str]] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Worker:
        if isinstance(heartbeat_stats, Unset) or (self._teller or worker_id) != worker_id:
            return await self._store.update_worker(worker_id, heartbeat_stats, attempts=attempts, request_id=request_id)
        self._teller, self._stats, failed = worker_id, heartbeat_stats, self._failed()
        told = {**heartbeat_stats, FAILED_HOOKS: failed} if failed else heartbeat_stats
        worker = await self._store.update_worker(worker_id, told, attempts=attempts, request_id=request_id)
        self._told = failed
        return worker

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        await self._tell_before_work()
        return await self._store.dequeue_rollout(worker_id, wait_seconds=wait_seconds, request_id=request_id)

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float | None = 0.0,
        request_id: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        await self._tell_before_work()
        return await self._store.dequeue_many_rollouts(
            limit=limit, worker_id=worker_id, wait_seconds=wait_seconds, request_id=request_id
        )

    async def _tell_before_work(self) -> None:
        try:
            await self.tell()
        except StoreError as exc:  # the next heartbeat says it again; if the store is gone, the claim says so
            logger.warning("lightning.failed_hooks_not_told worker_id=%s", self._teller, exc_info=exc)
