"""Records and documents of one run: read, and changed by compare-and-set, once for each request."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel

from lightning_core import lifecycle
from lightning_core.errors import InvalidRequest, NotFound
from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.rewards import Arrival, with_rewards_of
from lightning_core.store.backend import Document, DocumentKind, StoreBackend
from lightning_core.store.clock import Clock
from lightning_core.store.copies import copy_fields, copy_value
from lightning_core.store.tracking import MetricsBackend, counting, track_end
from lightning_core.types import Attempt, EnqueueRolloutRequest, Rollout, RolloutConfig, Worker
from lightning_core.types.frozen import construct, evolve

M = TypeVar("M", bound=BaseModel)

Change = Callable[[RolloutRecord], RolloutRecord]

BeginningKind = Literal["claim", "start"]
"""How an attempt is begun: out of the queue, or past it."""


def make_id(prefix: str, run_id: str, request_id: str | None, number: int = 0) -> str:
    """Return a new id; the same one for the same request, so that a repeated request makes nothing new.

    Args:
        prefix: Says what it identifies.
        run_id: The run.
        request_id: The request; None for a new id each time.
        number: Tells the things that one request makes apart.
    """
    if request_id is None:
        return f"{prefix}-{os.urandom(8).hex()}"
    text = "\0".join((prefix, run_id, request_id, str(number)))
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def own_attempt(record: RolloutRecord, kind: BeginningKind, request_id: str | None) -> Attempt:
    """Return the attempt that a request began; the newest one for a request without an id."""
    return record.attempt("latest" if request_id is None else _attempt_id(record, kind, request_id))


def _attempt_id(record: RolloutRecord, kind: BeginningKind, request_id: str | None) -> str:
    return make_id("at", f"{kind}\0{record.rollout.rollout_id}", request_id)


def _making(request: Request) -> str:
    """Return what the record calls the request that made it, whose id may be used again for its changes."""
    return f"new {request.request_id}"


def _executes(record: RolloutRecord, attempt: Attempt) -> bool:
    return attempt.status in lifecycle.ACTIVE_ATTEMPT and not lifecycle.given_up(record, attempt)


def _is_followed(record: RolloutRecord, attempt: Attempt) -> bool:
    return attempt.end_time is not None or _executes(record, attempt)


def _worker(fields: dict[str, Any]) -> Worker:
    """Return a worker's record, which keeps these very fields; those that another version wrote are checked."""
    if fields.keys() == _WORKER_FIELDS:
        return construct(Worker, fields, _WORKER_FIELDS)
    return Worker.model_validate(fields)


def _change_worker(
    worker_id: str, change: Callable[[Worker], Worker]
) -> Callable[[dict[str, Any] | None], dict[str, Any]]:
    """Return the change of a worker's fields; of a new worker's where there are none. They are what is kept."""

    def changed(fields: dict[str, Any] | None) -> dict[str, Any]:
        return change(Worker(worker_id=worker_id) if fields is None else _worker(fields)).__dict__

    return changed


def _sends_heartbeats(worker: Document | None) -> bool:
    return worker is not None and worker.value["last_heartbeat_time"] is not None


_ROLLOUT_FIELDS = set(Rollout.model_fields)
_WORKER_FIELDS = set(Worker.model_fields)
_DEFAULT_CONFIG = RolloutConfig()
_NEW_ROLLOUT = {name: field.get_default() for name, field in Rollout.model_fields.items()}


class Beginning(NamedTuple):
    """What begins attempts, and for whom."""

    begin: Change
    """Begins one, of a record."""
    kind: BeginningKind
    """How."""
    worker_id: str | None
    """Who executes them."""
    worker: Document | None
    """The worker's record as it was a moment ago."""
    request_id: str | None
    """The request that asks for them."""
    request: Request | None
    """What their records remember of it."""


def check_began(beginning: Beginning, record: RolloutRecord) -> None:
    """Check that the attempt that a request began was begun by this request.

    Raises:
        InvalidRequest: When it came before with other arguments.
    """
    if beginning.request is not None and beginning.request_id is not None:
        request = beginning.request._replace(request_id=beginning.request_id)
        check_same(record.request(beginning.request.request_id), request)


def digest_of(*parts: Any) -> str:
    """Return 16 characters that stand for values; none where JSON cannot hold them: these cannot be compared."""
    try:
        text = _encode(parts)
    except (TypeError, ValueError, RecursionError):  # not what JSON can hold: the memory store takes it all the same
        return ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def make_request_of(request_id: str | None, operation: str, *arguments: Any) -> Request | None:
    """Return what is remembered of a request: its id, and what stands for its arguments. None without an id."""
    return None if request_id is None else Request(request_id, None, digest_of(operation, *arguments))


def check_same(known: Request | None, request: Request) -> None:
    """Check that a request is the one that came under its id before, if one did.

    Raises:
        InvalidRequest: When that one had other arguments.
    """
    if known is not None and known.digest and request.digest and known.digest != request.digest:
        raise InvalidRequest(
            f"request id {request.request_id!r} came before with other arguments; an id names one request, so repeat "
            "it as it was, or take a new id"
        )


async def recall(
    backend: StoreBackend, run_id: str, owner: str, requests: Sequence[Request], request: Request, *, now: float
) -> Request | None:
    """Return the request of this id that changed a record before, None where this is the first.

    Before a record forgets its oldest requests in favour of this one, the backend keeps them.

    Args:
        backend: Where they are kept.
        run_id: The run.
        owner: The record.
        requests: What the record itself remembers.
        request: The request.
        now: The time, in seconds since the epoch.

    Raises:
        InvalidRequest: When that one had other arguments.
    """
    known = next((each for each in requests if each.request_id == request.request_id), None)
    if known is None and len(requests) >= lifecycle.MAX_REQUESTS:
        surplus = requests[: len(requests) + 1 - lifecycle.MAX_REQUESTS]
        known = await backend.remember_requests(run_id, owner, surplus, now=now, wanted=request.request_id)
    check_same(known, request)
    return known


def _encode_model(value: Any) -> Any:
    return value.__dict__ if isinstance(value, BaseModel) else type(value).__qualname__


_encode = json.JSONEncoder(sort_keys=True, default=_encode_model).encode


class Documents:
    """The documents of one run.

    Args:
        backend: Where they are kept.
        run_id: Whose documents.
        clock: Where the time comes from.
    """

    def __init__(self, backend: StoreBackend, run_id: str, clock: Clock) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock

    async def get(self, kind: DocumentKind, key: str, model: type[M]) -> M | None:
        """Return the document of this key, or None when there is none."""
        document = await self.find(kind, key)
        return None if document is None else _read(document, model)

    async def find(self, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key as it is kept, or None when there is none. Its value is not to be changed."""
        return await self._backend.get_document(self._run_id, kind, key)

    async def all(self, kind: DocumentKind, model: type[M]) -> list[M]:
        """Return all documents of a kind, in the order of their creation."""
        return [_read(document, model) for document in await self._backend.list_documents(self._run_id, kind)]

    async def change(
        self,
        kind: DocumentKind,
        key: str,
        change: Callable[[Any], Any],
        *,
        request: Request | None = None,
        for_a_day: bool = True,
        known: Document | None = None,
    ) -> Any:
        """Write what `change` makes of the document's value (None when there is none), by compare-and-set.

        Args:
            kind: The document's kind.
            key: Its key.
            change: Returns the value that follows, which is the document's from then on and may share parts with the
                one before; the same object for no change.
            request: Makes the change once, however often it is asked for.
            for_a_day: Whether the request is remembered for a day, rather than until a few newer ones have come.
            known: The document as it was a moment ago, which saves reading it. Only for a change that changes something
                whatever it finds.

        Returns:
            The value as it is now. It is not to be changed.

        Raises:
            InvalidRequest: When the request came before with other arguments.
        """
        document = await self.find(kind, key) if known is None else known
        while True:
            present = None if document is None else document.value
            revision, requests = (0, ()) if document is None else (document.revision, document.requests)
            if request is not None:
                if any(each.request_id == request.request_id for each in requests) and not for_a_day:
                    return present
                if for_a_day and await recall(
                    self._backend, self._run_id, f"{kind}/{key}", requests, request, now=self._clock.now()
                ):
                    return present
                requests = (*requests, request)[-lifecycle.MAX_REQUESTS :]
            changed = change(present)
            if document is not None and changed is present and request is None:
                return present
            written = await self._backend.put_document(
                self._run_id, kind, key, changed, revision=revision, requests=requests
            )
            if written is not None:
                return changed
            document = await self.find(kind, key)


def _read(document: Document, model: type[M]) -> M:
    return model.model_validate(copy_value(document.value))


class Records:
    """The rollout records of one run.

    Args:
        backend: Where they are kept.
        run_id: Whose records.
        clock: Where the time comes from.
        documents: Where the run's workers are kept.
        lease_seconds: How long a worker that sends heartbeats may be silent.
        tracker: Where rollouts that end are counted; None for nowhere.
    """

    def __init__(
        self,
        backend: StoreBackend,
        run_id: str,
        clock: Clock,
        documents: Documents,
        *,
        lease_seconds: float,
        tracker: MetricsBackend | None = None,
    ) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock
        self._documents = documents
        self._lease_seconds = lease_seconds
        self._tracker = tracker

    async def get(self, rollout_id: str) -> RolloutRecord:
        """Return a record.

        Raises:
            NotFound: When the run has none of this id.
        """
        record = await self._backend.get(self._run_id, rollout_id)
        if record is None:
            raise NotFound(f"run {self._run_id} has no rollout {rollout_id!r}")
        return record

    async def get_many(self, rollout_ids: Sequence[str]) -> list[RolloutRecord]:
        """Return records, in the order of the ids.

        Raises:
            NotFound: Names the first that the run does not have.
        """
        records = []
        found = await self._backend.get_many(self._run_id, rollout_ids)
        for rollout_id, record in zip(rollout_ids, found, strict=True):
            if record is None:
                raise NotFound(f"run {self._run_id} has no rollout {rollout_id!r}")
            records.append(record)
        return records

    async def change(
        self,
        rollout_id: str,
        change: Change,
        *,
        request: Request | None = None,
        attempt_id: str | None = None,
        known: RolloutRecord | None = None,
    ) -> RolloutRecord:
        """Write what `change` makes of a record. A writer that loses a race sees the winner's record and decides anew.

        Args:
            rollout_id: Whose record.
            change: Returns the record that follows, or the same object for no change.
            request: Makes the change once, however often it is asked for.
            attempt_id: The attempt that the request is about, perhaps `"latest"`; remembered with it.
            known: The record as it was a moment ago, which saves reading it where it has not changed since.

        Returns:
            The record as it is now, with the request among those that it remembers.

        Raises:
            InvalidRequest: When the request came before with other arguments.
        """
        record = await self.get(rollout_id) if known is None else known
        while True:
            if request is not None:
                now = self._clock.now()
                before = await recall(self._backend, self._run_id, rollout_id, record.requests, request, now=now)
                if before is not None:
                    return record if before in record.requests else lifecycle.with_request(record, before)
            changed = change(record)
            if request is not None:
                # A request that changes nothing now is remembered, too: repeated later, it might.
                about = None if attempt_id is None else record.attempt(attempt_id).attempt_id
                request = request._replace(attempt_id=about)
                changed = lifecycle.with_request(changed, request, most=lifecycle.MAX_REQUESTS)
            if changed is record:
                if record is not known:
                    return record
                known = None
            elif await self._backend.replace(record, changed):
                has_ended = changed.rollout.status in lifecycle.ENDED and record.rollout.status not in lifecycle.ENDED
                if has_ended and self._tracker is not None:
                    with counting():
                        await track_end(self._tracker, changed)
                return changed
            record = await self.get(rollout_id)

    async def insert(
        self,
        requests: Sequence[EnqueueRolloutRequest],
        request: Request | None,
        *,
        resources_id: str | None = None,
        begin: Change = lambda record: record,
    ) -> list[RolloutRecord]:
        """Write records of new rollouts, or return those that the same request made before, as they are now.

        Args:
            requests: The rollouts.
            request: Makes them once.
            resources_id: The resources of those that name none.
            begin: Begins an attempt of each.

        Raises:
            InvalidRequest: When the request came before with other arguments.
        """
        now, request_id = self._clock.now(), None if request is None else request.request_id
        remembered = () if request is None else (request._replace(request_id=_making(request)),)
        new = []
        for number, wanted in enumerate(requests):
            fields = {
                **_NEW_ROLLOUT,
                **copy_fields(wanted),
                "rollout_id": make_id("ro", self._run_id, request_id, number),
                "start_time": now,
            }
            if wanted.config is None:
                fields["config"] = _DEFAULT_CONFIG
            if wanted.resources_id is None:
                fields["resources_id"] = resources_id
            rollout = construct(Rollout, fields, _ROLLOUT_FIELDS)
            new.append(begin(RolloutRecord(self._run_id, rollout, requests=remembered)))
        if request is None:
            return await self._backend.insert(new)
        if len(new) > 1:  # what asks for more rollouts than before is to make none of them
            first = await self._backend.get(self._run_id, new[0].rollout.rollout_id)
            check_same(None if first is None else first.request(_making(request)), request)
        kept = await self._backend.insert(new)
        for record in kept:
            check_same(record.request(_making(request)), request)
        return kept

    async def beginning(
        self, kind: BeginningKind, worker_id: str | None, *, request_id: str | None = None
    ) -> Beginning:
        """Return what begins attempts for a worker, with the latest resources where a record names none.

        A worker that has sent heartbeats holds a lease on the attempt.
        """
        resources_id = await self._backend.latest_key(self._run_id, "resources")
        worker = None if worker_id is None else await self._backend.get_document(self._run_id, "workers", worker_id)
        lease_seconds = self._lease_seconds if _sends_heartbeats(worker) else None
        # A claim and a start are different requests, even under one id: what a start began, a claim may get later.
        request = make_request_of(None if request_id is None else f"{kind} {request_id}", kind, worker_id)

        def begin(record: RolloutRecord) -> RolloutRecord:
            attempt_id = _attempt_id(record, kind, request_id)
            if request_id is not None and any(attempt.attempt_id == attempt_id for attempt in record.attempts):
                return record
            begun = lifecycle.begin_attempt(
                record,
                self._clock.now(),
                attempt_id=attempt_id,
                worker_id=worker_id,
                lease_seconds=lease_seconds,
            )
            if request is not None:
                begun = lifecycle.with_request(begun, request._replace(attempt_id=attempt_id))
            if record.rollout.resources_id is None and resources_id is not None:
                return lifecycle.with_fields(begun, {"resources_id": resources_id})
            return begun

        return Beginning(begin, kind, worker_id, worker, request_id, request)

    async def claim(
        self, limit: int, worker_id: str | None, *, asked_at: float, request_id: str | None = None
    ) -> list[tuple[RolloutRecord, Attempt]] | None:
        """Begin an attempt of up to `limit` queued rollouts; of none for a request that was answered with nothing.

        Args:
            limit: How many at most.
            worker_id: Who executes them.
            asked_at: When it asked for work; recorded with what it got.
            request_id: Makes the claim once, however often it is asked for.

        Returns:
            The records with their attempts; to a repeated request those that it got before and that were not taken
            from it. None when there was nothing to claim, and may be later.
        """
        beginning = await self.beginning("claim", worker_id, request_id=request_id)
        if request_id is not None and await self._answered_with_nothing(request_id):
            limit = 0
        claimed = await self._backend.claim(self._run_id, limit, beginning.begin, request_id=request_id)
        if not claimed:
            return [] if limit == 0 else None
        begun = [(record, own_attempt(record, "claim", request_id)) for record in claimed]
        if request_id is not None:
            for record in claimed:
                check_began(beginning, record)
            # A repeated request may come late: what has ended or was taken from it since is not for it to execute.
            begun = [(record, attempt) for record, attempt in begun if _executes(record, attempt)]
        if begun:
            await self.assign(beginning, begun, asked_at=asked_at)
        return begun

    async def answer_with_nothing(self, request_id: str) -> None:
        """Remember that a claim was answered with nothing: a copy of it that comes late claims nothing, too."""
        await self._answered_with_nothing(request_id, Request(request_id))

    async def _answered_with_nothing(self, request_id: str, *answered: Request) -> bool:
        known = await self._backend.remember_requests(
            self._run_id, "claims", answered, now=self._clock.now(), wanted=request_id
        )
        return known is not None

    async def assign(
        self,
        beginning: Beginning,
        attempts: Sequence[tuple[RolloutRecord, Attempt]],
        *,
        asked_at: float | None = None,
    ) -> None:
        """Let a worker's record follow the attempts that its request began, once for each request.

        Args:
            beginning: What began them.
            attempts: Each with its record.
            asked_at: When the worker asked for work; None when it did not.
        """
        if beginning.worker_id is None:
            return
        now = self._clock.now()

        def change(worker: Worker) -> Worker:
            if asked_at is not None:
                worker = evolve(worker, last_dequeue_time=asked_at)
            for record, attempt in attempts:
                if _is_followed(record, attempt):
                    worker = lifecycle.worker_after(worker, attempt, now)
            return worker

        await self._follow(beginning.worker_id, change, once=beginning.request, known=beginning.worker)

    async def nothing_claimed(self, worker_id: str, *, asked_at: float, request_id: str | None) -> None:
        """Record that a worker asked for work and got none.

        One that asks without a request id may have got some before, and lost the answer: its heartbeats, which name no
        attempt, are not for that.
        """

        def change(worker: Worker) -> Worker:
            worker = evolve(worker, last_dequeue_time=asked_at)
            if request_id is not None or worker.current_attempt_id is None:
                return worker
            return evolve(worker, status="unknown", current_rollout_id=None, current_attempt_id=None)

        await self._follow(worker_id, change)

    async def spans_arrived(
        self, known: RolloutRecord, attempt_id: str, *, any_new: bool, rewards: Sequence[Arrival] = ()
    ) -> None:
        """Let an attempt follow its spans, and its worker follow an attempt that is revived.

        Spans that were there already are not a sign of life. But they finish what a request that broke off before
        left undone: an attempt that has spans does not prepare any more.

        Args:
            known: The attempt's record, as it was before the spans were kept.
            attempt_id: The attempt.
            any_new: Whether any of them was not there before.
            rewards: Those that may have a reward.
        """
        now = self._clock.now()
        before = "preparing"

        def change(record: RolloutRecord) -> RolloutRecord:
            nonlocal before
            attempt = record.attempt(attempt_id)
            before = attempt.status
            if any_new or before == "preparing":
                record = lifecycle.span_arrived(record, now, attempt_id)
            metadata = with_rewards_of(attempt.metadata, rewards)
            if metadata is attempt.metadata:
                return record
            return lifecycle.with_attempt_fields(record, attempt_id, {"metadata": metadata})

        record = await self.change(known.rollout.rollout_id, change, known=known)
        attempt = record.attempt(attempt_id)
        if before == "unresponsive" and attempt.status == "running":
            await self.follow(record, attempt)

    async def heartbeat(
        self,
        worker_id: str,
        fields: dict[str, Any],
        attempts: Sequence[tuple[str, str]] | None,
        *,
        request: Request | None = None,
    ) -> Worker:
        """Record a worker's sign of life, which is one of its attempts, too, and renews the leases on them.

        Args:
            worker_id: The worker.
            fields: What it says of itself.
            attempts: What it executes; None for what its record names.
            request: Makes it one sign of life.

        Returns:
            The worker's record, which shares its values with what is kept.
        """
        now = self._clock.now()

        def change(worker: Worker) -> Worker:
            return evolve(worker, last_heartbeat_time=now, **fields)

        kept = await self._documents.change("workers", worker_id, _change_worker(worker_id, change), request=request)
        worker = _worker(kept)
        at = worker.last_heartbeat_time  # of a repeated request that of the first one, which may have got no further
        if attempts is None:
            current = worker.current_rollout_id, worker.current_attempt_id
            attempts = [] if current[0] is None or current[1] is None else [(current[0], current[1])]
        if at is not None:
            for rollout_id, attempt_id in dict.fromkeys(attempts):
                with suppress(NotFound):  # deleted under its worker
                    await self._renew(rollout_id, attempt_id, worker_id, at)
        return worker

    async def _renew(self, rollout_id: str, attempt_id: str, worker_id: str, at: float) -> None:
        def change(record: RolloutRecord) -> RolloutRecord:
            if record.attempt(attempt_id).worker_id not in (worker_id, None):
                return record
            return lifecycle.heartbeat(record, at, attempt_id, self._lease_seconds)

        await self.change(rollout_id, change)

    async def handing_over(self, attempt_id: str, worker_id: str | None) -> Change:
        """Return what gives an attempt to another worker, or to none."""
        keeps_lease = worker_id is not None and _sends_heartbeats(
            await self._backend.get_document(self._run_id, "workers", worker_id)
        )
        return lambda record: lifecycle.hand_over(record, attempt_id, worker_id, keeps_lease=keeps_lease)

    async def follow(
        self,
        record: RolloutRecord,
        attempt: Attempt,
        *,
        worker_id: str | None = None,
        request: Request | None = None,
    ) -> None:
        """Let a worker's record follow an attempt, once for each request.

        An attempt that was given up and still runs is not followed.

        Args:
            record: The attempt's record.
            attempt: What to follow.
            worker_id: Whose record; None for the worker that executes it, if any.
            request: Makes the change once.
        """
        worker_id = attempt.worker_id if worker_id is None else worker_id
        if worker_id is not None and _is_followed(record, attempt):
            now = self._clock.now()
            # Another name than the request's own, which the worker may use for its heartbeats.
            once = None if request is None else request._replace(request_id=f"follow {request.request_id}")
            await self._follow(worker_id, lambda worker: lifecycle.worker_after(worker, attempt, now), once=once)

    async def _follow(
        self,
        worker_id: str,
        change: Callable[[Worker], Worker],
        *,
        once: Request | None = None,
        known: Document | None = None,
    ) -> None:
        """Write what `change` makes of a worker's record.

        What it follows remembers the request for longer than the worker does; so a few of them are enough here.
        """
        changed = _change_worker(worker_id, change)
        await self._documents.change("workers", worker_id, changed, request=once, for_a_day=False, known=known)

    async def of_attempts(self, attempts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], RolloutRecord]:
        """Return the records of these `(rollout_id, attempt_id)`.

        Raises:
            NotFound: Names the first that does not exist.
            InvalidRequest: When one is called `"latest"`.
        """
        records = {}
        wanted = list(attempts)
        found = await self.get_many([rollout_id for rollout_id, _ in wanted])
        for (rollout_id, attempt_id), record in zip(wanted, found, strict=True):
            # "latest" names an attempt only to those who ask, never as where something belongs.
            if record.attempt(attempt_id).attempt_id != attempt_id:
                raise InvalidRequest(f"spans belong to an attempt's own id; got {attempt_id!r} of rollout {rollout_id}")
            records[rollout_id, attempt_id] = record
        return records
