"""Rollout records of one run: read, changed by compare-and-set, and followed by their workers."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest, NotFound
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import StoreBackend
from lightning_core.store.clock import Clock
from lightning_core.store.copies import copy_value
from lightning_core.store.documents import Documents
from lightning_core.types import Attempt, EnqueueRolloutRequest, Rollout, RolloutConfig, Worker

Change = Callable[[RolloutRecord], RolloutRecord]


def make_id(prefix: str, run_id: str, request_id: str | None, number: int = 0) -> str:
    """Return a new id; the same one for the same request, so that a repeated request makes nothing new.

    Args:
        prefix: Says what it identifies.
        run_id: The run.
        request_id: The request; None for an id that nobody else will ever get.
        number: Tells the things that one request makes apart.
    """
    if request_id is None:
        return f"{prefix}-{secrets.token_hex(8)}"
    text = "\0".join((prefix, run_id, request_id, str(number)))
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def own_attempt(record: RolloutRecord, request_id: str | None) -> Attempt:
    """Return the attempt that a request began; the newest one for a request without an id."""
    return record.attempt("latest" if request_id is None else make_id("at", record.rollout.rollout_id, request_id))


def _executes(record: RolloutRecord, attempt: Attempt) -> bool:
    return attempt.status in lifecycle.ACTIVE_ATTEMPT and not lifecycle.given_up(record, attempt)


class Records:
    """The rollout records of one run.

    Args:
        backend: Where they are kept.
        run_id: Whose records.
        clock: Where the time comes from.
        documents: Where the run's workers are kept.
        lease_seconds: How long a worker that sends heartbeats may be silent.
    """

    def __init__(
        self, backend: StoreBackend, run_id: str, clock: Clock, documents: Documents, *, lease_seconds: float
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock
        self._documents = documents
        self._lease_seconds = lease_seconds

    async def get(self, rollout_id: str) -> RolloutRecord:
        """Return a record.

        Raises:
            NotFound: When the run has none of this id.
        """
        record = await self._backend.get(self._run_id, rollout_id)
        if record is None:
            raise NotFound(f"run {self._run_id} has no rollout {rollout_id!r}")
        return record

    async def change(self, rollout_id: str, change: Change, *, request_id: str | None = None) -> RolloutRecord:
        """Write what `change` makes of a record. Whoever loses a race sees the winner's record and decides anew.

        Args:
            rollout_id: Whose record.
            change: Returns the record that follows, or the same object for no change.
            request_id: Makes the change once, however often it is asked for.

        Returns:
            The record as it is now.
        """
        while True:
            record = await self.get(rollout_id)
            if request_id is not None and request_id in record.requests:
                return record
            # A request that changes nothing now is remembered, too: repeated later, it might.
            changed = lifecycle.with_request(change(record), request_id)
            if changed is record:
                return record
            if await self._backend.replace(record, changed):
                return changed

    async def expire(self, *, gives_sign: Callable[[Attempt], bool] | None = None) -> None:
        """End what is due.

        Args:
            gives_sign: Tells the attempts whose worker is calling just now, and so is not lost, however late it is:
                a process may have stood still, and its workers with it.
        """
        now = self._clock.now()
        for record in await self._backend.due(self._run_id, now):
            due, attempt = lifecycle.deadline(record), record.latest
            if due and due.is_fault and attempt and gives_sign and gives_sign(attempt):
                continue
            try:
                changed = await self.change(record.rollout.rollout_id, lambda record: lifecycle.expire(record, now))
            except NotFound:  # deleted since
                continue
            if changed.latest is not None:
                await self.follow(changed, changed.latest)

    def new(self, requests: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None) -> list[RolloutRecord]:
        """Make records of new rollouts, which are not written yet."""
        now = self._clock.now()
        return [
            RolloutRecord(
                self._run_id,
                Rollout(
                    rollout_id=make_id("ro", self._run_id, request_id, number),
                    input=copy_value(request.input),
                    start_time=now,
                    mode=request.mode,
                    resources_id=request.resources_id,
                    config=RolloutConfig() if request.config is None else request.config.model_copy(deep=True),
                    metadata=copy_value(request.metadata),
                ),
            )
            for number, request in enumerate(requests)
        ]

    async def beginning(self, worker_id: str | None, *, request_id: str | None = None) -> Change:
        """Return what begins an attempt of a record, with the latest resources where it names none.

        A worker that has sent heartbeats holds a lease on the attempt.
        """
        resources_id = await self._documents.latest_key("resources")
        worker = None if worker_id is None else await self._documents.get("workers", worker_id, Worker)
        lease_seconds = self._lease_seconds if worker is not None and worker.last_heartbeat_time is not None else None

        def begin(record: RolloutRecord) -> RolloutRecord:
            attempt_id = make_id("at", record.rollout.rollout_id, request_id)
            if request_id is not None and any(attempt.attempt_id == attempt_id for attempt in record.attempts):
                return record
            begun = lifecycle.begin_attempt(
                record, self._clock.now(), attempt_id=attempt_id, worker_id=worker_id, lease_seconds=lease_seconds
            )
            if record.rollout.resources_id is None and resources_id is not None:
                return lifecycle.with_fields(begun, {"resources_id": resources_id})
            return begun

        return begin

    async def claim(
        self, limit: int, worker_id: str | None, *, request_id: str | None = None
    ) -> list[RolloutRecord] | None:
        """Begin an attempt of up to `limit` queued rollouts.

        Returns:
            The records; to a repeated request those that it got before and that were not taken from it. None when
            there was nothing to claim.
        """
        begin = await self.beginning(worker_id, request_id=request_id)
        claimed = await self._backend.claim(self._run_id, limit, begin, request_id=request_id)
        if not claimed:
            return None
        if request_id is not None:
            # A repeated request may come late: what has ended or was taken from it since is not for it to execute.
            claimed = [record for record in claimed if _executes(record, own_attempt(record, request_id))]
        for record in claimed:
            await self.assign(record, request_id=request_id)
        return claimed

    async def spans_arrived(self, rollout_id: str, attempt_id: str, *, any_new: bool) -> None:
        """Let an attempt follow its spans, and its worker follow an attempt that is revived.

        Spans that were there already are no sign of life. But they finish what a request that broke off before
        left undone: an attempt that has spans does not prepare any more.
        """
        now = self._clock.now()
        before = "preparing"

        def change(record: RolloutRecord) -> RolloutRecord:
            nonlocal before
            before = record.attempt(attempt_id).status
            if not any_new and before != "preparing":
                return record
            return lifecycle.span_arrived(record, now, attempt_id)

        record = await self.change(rollout_id, change)
        attempt = record.attempt(attempt_id)
        if before == "unresponsive" and attempt.status == "running":
            await self.follow(record, attempt)

    async def heartbeat(self, worker_id: str, fields: dict[str, Any], *, request_id: str | None = None) -> Worker:
        """Record a worker's sign of life, which is one of its attempt, too, and renews the lease on it."""
        now = self._clock.now()
        worker = await self.change_worker(
            worker_id,
            lambda worker: worker.model_copy(update={"last_heartbeat_time": now, **fields}),
            request_id=request_id,
        )
        rollout_id, attempt_id = worker.current_rollout_id, worker.current_attempt_id
        at = worker.last_heartbeat_time  # of a repeated request that of the first one, which may have got no further
        if rollout_id is not None and attempt_id is not None and at is not None:
            try:
                await self.change(
                    rollout_id, lambda record: lifecycle.heartbeat(record, at, attempt_id, self._lease_seconds)
                )
            except NotFound:  # deleted under its worker
                return worker
        return worker

    async def assign(self, record: RolloutRecord, *, request_id: str | None = None) -> None:
        """Let the worker of the attempt that a request began know of it."""
        attempt = own_attempt(record, request_id)
        await self.follow(record, attempt, request_id=None if request_id is None else attempt.attempt_id)

    async def follow(self, record: RolloutRecord, attempt: Attempt, *, request_id: str | None = None) -> None:
        """Let the worker's record follow its attempt, once for each request.

        An attempt that was given up and still runs is not followed.
        """
        if attempt.worker_id is not None and (attempt.end_time is not None or _executes(record, attempt)):
            now = self._clock.now()
            await self.change_worker(
                attempt.worker_id, lambda worker: lifecycle.worker_after(worker, attempt, now), request_id=request_id
            )

    async def change_worker(
        self, worker_id: str, change: Callable[[Worker], Worker], *, request_id: str | None = None
    ) -> Worker:
        """Write what `change` makes of a worker's record; of a new one where there is none."""
        return await self._documents.change(
            "workers",
            worker_id,
            Worker,
            lambda worker: change(worker or Worker(worker_id=worker_id)),
            request_id=request_id,
        )

    async def check_attempts(self, attempts: Iterable[tuple[str, str]]) -> None:
        """Check that these `(rollout_id, attempt_id)` exist.

        Raises:
            NotFound: Names the first that does not.
            InvalidRequest: When one is called `"latest"`.
        """
        for rollout_id, attempt_id in attempts:
            record = await self.get(rollout_id)
            # "latest" names an attempt only to those who ask, never as where something belongs.
            if record.attempt(attempt_id).attempt_id != attempt_id:
                raise InvalidRequest(f"spans belong to an attempt's own id; got {attempt_id!r} of rollout {rollout_id}")
