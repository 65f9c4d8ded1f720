"""The store in this process's memory: fast, and gone with the process."""

import heapq
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

from lightning_core import lifecycle
from lightning_core.deprecated import deprecated
from lightning_core.errors import NotFound
from lightning_core.lifecycle import Request, RolloutRecord
from lightning_core.store.backend import REQUEST_SECONDS, Change, Document, DocumentKind, StoreBackend
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.clock import Clock
from lightning_core.store.copies import span_of
from lightning_core.store.facade import StoreFacade
from lightning_core.store.query import Query, select
from lightning_core.store.tracking import MetricsBackend
from lightning_core.store.waits import Listeners
from lightning_core.types import RolloutStatus, Span


@dataclass(slots=True)
class _Spans:
    """The spans of one attempt, by their ids, in the order of their arrival.

    Only their fields are kept, so that a span is as few objects as possible: the garbage collector visits each of them
    again and again, and would soon take more time than everything else.
    """

    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields that the model does not have, of those spans that have any."""
    last_sequence_id: int = 0

    def keep(self, span: Span) -> int | None:
        """Keep a span, and number it if it has no number.

        Returns:
            Its sequence id, or None when there is one of this id already.
        """
        kept = span.__dict__
        span_id: str = kept["span_id"]
        if span_id in self.fields:
            return None
        number: int = kept["sequence_id"]
        if number == 0:
            number = kept["sequence_id"] = self.last_sequence_id + 1
        if number > self.last_sequence_id:
            self.last_sequence_id = number
        _share_empty(kept)
        if span.__pydantic_extra__:
            self.extra[span_id] = span.__pydantic_extra__
        self.fields[span_id] = kept
        return number


def _share_empty(fields: dict[str, Any]) -> None:
    for name in ("events", "links"):
        if not fields[name]:
            fields[name] = ()


@dataclass(slots=True)
class _Run:
    """What is kept of one run."""

    records: dict[str, RolloutRecord] = field(default_factory=dict)
    ordinals: dict[str, int] = field(default_factory=dict)
    """Where each rollout stands in the order of insertion."""
    queue: OrderedDict[str, None] = field(default_factory=OrderedDict)
    deadlines: list[tuple[float, str]] = field(default_factory=list)
    """A heap with one entry a rollout, and another each time its deadline moves forward. An entry may be early: it
    is put back when it comes up."""
    timed: dict[str, float] = field(default_factory=dict)
    spans: dict[str, dict[str, _Spans]] = field(default_factory=lambda: defaultdict(dict))
    """By rollout, then by attempt."""
    claims: dict[str, list[str]] = field(default_factory=dict)
    """The rollouts that a request claimed, and below the other way round."""
    claimed_by: dict[str, list[str]] = field(default_factory=dict)
    created: int = 0
    live: Counter[RolloutStatus] = field(default_factory=Counter)
    span_count: int = 0
    attempt_count: int = 0
    documents: dict[DocumentKind, dict[str, Document]] = field(default_factory=lambda: defaultdict(dict))
    latest: dict[DocumentKind, str] = field(default_factory=dict)
    requests: OrderedDict[tuple[str, str], tuple[float, Request]] = field(default_factory=OrderedDict)
    """What records have no more room for, by owner and id, with the time, oldest first."""

    def write(self, record: RolloutRecord) -> Change:
        """Keep a record, and what follows from it for the queue and the deadlines."""
        rollout_id, status = record.rollout.rollout_id, record.rollout.status
        before = self.records.get(rollout_id)
        if before is None:
            self.created += 1
            self.ordinals[rollout_id] = self.created
        self.attempt_count += len(record.attempts) - (len(before.attempts) if before else 0)
        self.records[rollout_id] = record
        self._count_live(status, before)
        if status in lifecycle.QUEUED:
            self.queue.setdefault(rollout_id)
        else:
            self.queue.pop(rollout_id, None)
        deadline = lifecycle.deadline(record)
        if deadline is None:
            return Change(record.run_id, rollout_id, status, None)
        if deadline.at < self.timed.get(rollout_id, float("inf")):
            self.timed[rollout_id] = deadline.at
            heapq.heappush(self.deadlines, (deadline.at, rollout_id))
        return Change(record.run_id, rollout_id, status, deadline.at)

    def delete(self, rollout_id: str) -> None:
        """Forget a rollout. What the deadlines have of it is skipped when it comes up."""
        record = self.records.pop(rollout_id)
        self._count_live(None, record)
        self.attempt_count -= len(record.attempts)
        self.span_count -= sum(len(spans.fields) for spans in self.spans.pop(rollout_id, {}).values())
        for request_id in self.claimed_by.pop(rollout_id, ()):
            self.claims[request_id].remove(rollout_id)
            if not self.claims[request_id]:
                del self.claims[request_id]
        for index in (self.ordinals, self.queue, self.timed):
            index.pop(rollout_id, None)

    def _count_live(self, status: RolloutStatus | None, before: RolloutRecord | None) -> None:
        if before is not None and before.rollout.status not in lifecycle.ENDED:
            self.live[before.rollout.status] -= 1
        if status is not None and status not in lifecycle.ENDED:
            self.live[status] += 1

    def spans_of(self, rollout_id: str, attempt_id: str) -> _Spans:
        by_attempt = self.spans[rollout_id]
        if attempt_id not in by_attempt:
            by_attempt[attempt_id] = _Spans()
        return by_attempt[attempt_id]

    def check_there(self, run_id: str, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            if rollout_id not in self.records:
                raise NotFound(f"run {run_id} has no rollout {rollout_id!r}")

    def candidates(self, query: Query) -> Iterable[RolloutRecord]:
        """Return what a query has to look at, in the order of insertion."""
        if query.logic == "and":
            for condition in query.conditions:
                if condition.field == "rollout_id" and condition.test == "in":
                    known = sorted(condition.value & self.ordinals.keys(), key=self.ordinals.__getitem__)
                    return [self.records[rollout_id] for rollout_id in known]
        return self.records.values()

    def due(self, now: float) -> list[RolloutRecord]:
        """Return what is due. It stays in the heap until a write gives it another deadline or none."""
        entries: list[tuple[float, RolloutRecord]] = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, rollout_id = heapq.heappop(self.deadlines)
            entries.append((at, self.records[rollout_id]))
        for at, record in entries:
            heapq.heappush(self.deadlines, (at, record.rollout.rollout_id))
        # Ids are random: where deadlines are equal, the order of insertion keeps what follows reproducible.
        entries.sort(key=lambda entry: (entry[0], self.ordinals[entry[1].rollout.rollout_id]))
        return [record for _, record in entries]

    def next_deadline(self) -> float | None:
        while self.deadlines:
            at, rollout_id = self.deadlines[0]
            record = self.records.get(rollout_id)
            due = None if record is None else lifecycle.deadline(record)
            if self.timed.get(rollout_id) == at and due is not None and due[0] == at:
                return at
            heapq.heappop(self.deadlines)
            if self.timed.get(rollout_id) == at:
                del self.timed[rollout_id]
                if due is not None:
                    self.timed[rollout_id] = due[0]
                    heapq.heappush(self.deadlines, (due[0], rollout_id))
        return None


class MemoryBackend(StoreBackend):
    """Keeps everything in dictionaries, under one lock that is never held across an await."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._nothing = _Run()
        self._listeners = Listeners()

    @property
    def name(self) -> str:
        """What statistics call this store."""
        return "InMemoryLightningStore"

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}

    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order."""
        kept, changes = [], []
        with self._lock:
            for record in records:
                run = self._run_to_write(record.run_id)
                present = run.records.get(record.rollout.rollout_id)
                if present is None:
                    changes.append(run.write(record))
                kept.append(present or record)
        self._listeners.tell(changes)
        return kept

    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""
        with self._lock:
            return self._run(run_id).records.get(rollout_id)

    async def get_many(self, run_id: str, rollout_ids: Sequence[str]) -> list[RolloutRecord | None]:
        """Return what `get` gives for each id."""
        with self._lock:
            return list(map(self._run(run_id).records.get, rollout_ids))

    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        with self._lock:
            run = self._run(old.run_id)
            present = run.records.get(old.rollout.rollout_id)
            if present is None or present.revision != old.revision:
                return False
            change = run.write(new._replace(revision=old.revision + 1))
        self._listeners.tell((change,))
        return True

    async def claim(
        self,
        run_id: str,
        limit: int,
        begin: Callable[[RolloutRecord], RolloutRecord],
        *,
        request_id: str | None = None,
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        claimed: list[RolloutRecord] = []
        changes: list[Change] = []
        with self._lock:
            run = self._run(run_id)
            if request_id is not None and request_id in run.claims:
                again = [run.records.get(rollout_id) for rollout_id in run.claims[request_id]]
                return [record for record in again if record is not None]
            while len(claimed) < limit and run.queue:
                record = run.records[run.queue.popitem(last=False)[0]]
                begun = begin(record)._replace(revision=record.revision + 1)
                changes.append(run.write(begun))
                claimed.append(begun)
            if request_id is not None and claimed:
                run.claims[request_id] = [record.rollout.rollout_id for record in claimed]
                for record in claimed:
                    run.claimed_by.setdefault(record.rollout.rollout_id, []).append(request_id)
        self._listeners.tell(changes)
        return claimed

    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout."""
        with self._lock:
            candidates = self._run(run_id).candidates(query)
            return select(candidates, query, get=lambda record, name: getattr(record.rollout, name))

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`."""
        with self._lock:
            run = self._run(run_id)
            if not run.deadlines or run.deadlines[0][0] > now:
                return []
            return run.due(now)

    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due."""
        with self._lock:
            return self._run(run_id).next_deadline()

    async def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        Raises:
            NotFound: When a rollout is gone.
        """
        with self._lock:
            run = self._run(run_id)
            run.check_there(run_id, {span.rollout_id for span in spans})
            stored = [run.spans_of(span.rollout_id, span.attempt_id).keep(span) for span in spans]
            run.span_count += len(stored) - stored.count(None)
        return stored

    async def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id."""
        with self._lock:
            run = self._run(run_id)
            for span in spans:
                kept = run.spans.get(span.rollout_id, {}).get(span.attempt_id)
                if kept is not None and span.span_id in kept.fields:
                    kept.fields[span.span_id] = span.__dict__
                    _share_empty(span.__dict__)
                    kept.extra.pop(span.span_id, None)

    async def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`."""
        reserved = []
        with self._lock:
            run = self._run(run_id)
            run.check_there(run_id, (rollout_id for rollout_id, _ in attempts))
            for rollout_id, attempt_id in attempts:
                kept = run.spans_of(rollout_id, attempt_id)
                kept.last_sequence_id += 1
                reserved.append(kept.last_sequence_id)
        return reserved

    async def find_spans(
        self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query
    ) -> tuple[list[Span], int]:
        """Query the spans of a rollout, or of one of its attempts."""
        with self._lock:
            by_attempt = self._run(run_id).spans.get(rollout_id, {})
            wanted = [kept for key, kept in by_attempt.items() if attempt_id is None or key == attempt_id]
            page, total = select([fields for kept in wanted for fields in kept.fields.values()], query, get=getitem)
            if not any(kept.extra for kept in wanted):
                return [span_of(fields) for fields in page], total
            return [
                span_of(fields, by_attempt[fields["attempt_id"]].extra.get(fields["span_id"])) for fields in page
            ], total

    async def put_document(
        self,
        run_id: str,
        kind: DocumentKind,
        key: str,
        value: Any,
        *,
        revision: int,
        requests: tuple[Request, ...] = (),
    ) -> Document | None:
        """Write a document, which thereby becomes the latest of its kind."""
        with self._lock:
            present = self._run(run_id).documents[kind].get(key)
            if revision != (present.revision if present else 0):
                return None
            run = self._run_to_write(run_id)
            document = run.documents[kind][key] = Document(key, value, revision + 1, requests)
            run.latest[kind] = key
        return document

    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        with self._lock:
            return self._run(run_id).documents[kind].get(key)

    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        with self._lock:
            return self._run(run_id).latest.get(kind)

    async def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        with self._lock:
            return list(self._run(run_id).documents[kind].values())

    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before."""
        with self._lock:
            kept = self._run_to_write(run_id).requests
            entry = kept.get((owner, wanted))
            for request in requests:
                kept.setdefault((owner, request.request_id), (now, request))
            for _ in range(2 * len(requests)):
                oldest = next(iter(kept.values()))
                if oldest[0] > now - REQUEST_SECONDS:
                    break
                kept.popitem(last=False)
        return None if entry is None else entry[1]

    async def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans."""
        with self._lock:
            run = self._run(run_id)
            deleted = [rollout_id for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in run.records]
            for rollout_id in deleted:
                run.delete(rollout_id)
        self._announce_deleted(run_id, deleted)
        return len(deleted)

    async def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run."""
        with self._lock:
            deleted = list(self._runs.pop(run_id, self._nothing).records)
        self._announce_deleted(run_id, deleted)

    async def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run."""
        with self._lock:
            run = self._run(run_id)
            return {
                "rollouts": len(run.records),
                "attempts": run.attempt_count,
                "spans": run.span_count,
                "resources": len(run.documents["resources"]),
                "workers": len(run.documents["workers"]),
            }

    async def count_live(self, run_id: str) -> dict[RolloutStatus, int]:
        """Return how many rollouts have each status that is not an end."""
        with self._lock:
            return {status: number for status, number in self._run(run_id).live.items() if number}

    def watch(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener after each written record, until the returned function is called."""
        return self._listeners.add(run_id, listener)

    async def aclose(self) -> None:
        """Forget everything."""
        with self._lock:
            self._runs.clear()

    def _run(self, run_id: str) -> _Run:
        """Return the run to read from: one that stays empty where nothing was written."""
        return self._runs.get(run_id, self._nothing)

    def _run_to_write(self, run_id: str) -> _Run:
        """Return the run, a new one where nothing was written before."""
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run()
        return run

    def _announce_deleted(self, run_id: str, rollout_ids: Iterable[str]) -> None:
        self._listeners.tell([Change(run_id, rollout_id, None, None) for rollout_id in rollout_ids])


class InMemoryLightningStore(StoreFacade):
    """A store in this process's memory.

    It may be used from any thread and any event loop of the process, and is gone with the process. It grows with
    what is put into it: nothing is ever dropped.

    Args:
        run_id: The run that this store works for; None makes a new one.
        clock: Where the time comes from; None for the machine's clock.
        lease_seconds: How long a worker that sends heartbeats may be silent before its attempt is taken from it.
        tracker: Where calls are counted and timed, and how rollouts end; None for nowhere.
    """

    @deprecated(
        without_effect={
            "thread_safe": "it can always be used from any thread",
            "scan_debounce_seconds": "deadlines are looked at when they come",
            **dict.fromkeys(
                ("eviction_memory_threshold", "safe_memory_threshold", "span_size_estimator"),
                "nothing is evicted; the store sqlite keeps more than fits into memory",
            ),
        }
    )
    def __init__(
        self,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        tracker: MetricsBackend | None = None,
    ) -> None:
        super().__init__(MemoryBackend(), run_id=run_id, clock=clock, lease_seconds=lease_seconds, tracker=tracker)
