"""The narrow port that a database implements; the facade does everything else.

A backend keeps three things, all of them by run: rollout records (a rollout with its attempts, changed by
compare-and-set), spans (appended, and replaced only to drop their content), and small documents (resources, workers,
saved state). It knows nothing of statuses beyond what `lightning_core.lifecycle` says of a record.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

from lightning_core.errors import StoreError
from lightning_core.lifecycle import ENDED, Request, RolloutRecord
from lightning_core.store.base import LightningStoreCapabilities
from lightning_core.store.query import Condition, Query
from lightning_core.types import RolloutStatus, Span

DocumentKind = Literal["resources", "workers", "state"]
"""The kinds of documents, each with its own keys."""

REQUEST_SECONDS: Final = 86_400.0
"""How long `remember_requests` keeps a request, at least."""

_MAX_REQUESTS_KEPT = 1_000


class Change(NamedTuple):
    """Something that a waiter may be waiting for: a rollout has this status now, or is gone."""

    run_id: str
    rollout_id: str
    """Empty where another process has ended the run, or begun it again: then who waits for work looks again."""
    status: RolloutStatus | None
    """None when the rollout was deleted."""
    deadline: float | None
    """When the record has to be looked at again, in seconds since the epoch."""


class Document(NamedTuple):
    """A small value with a key."""

    key: str
    value: Any
    """A JSON-like value, which is never changed: the facade copies what it takes and what it hands out."""
    revision: int
    """Counts its writes, from 1."""
    requests: tuple[Request, ...] = ()
    """The newest requests that changed it."""


class StoreBackend(ABC):
    """Persistence for `StoreFacade`.

    Every method is atomic: it happens as a whole or not at all, and concurrent calls behave as if one came after the
    other. What a method acknowledged is kept as well as the database keeps anything.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What statistics call this store."""

    @property
    @abstractmethod
    def capabilities(self) -> LightningStoreCapabilities:
        """What a store over this backend can do."""

    is_shared: ClassVar[bool] = False
    """Whether others than this process may write to the same data while it is open."""

    async def kept_runs(self) -> list[str]:
        """Return the runs of which anything is kept beyond this process, oldest first; none by default."""
        return []

    @abstractmethod
    async def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order. Those that are queued go to the tail of their run's queue.

        Returns:
            The records as kept: where a rollout of that id was there already, that one, unchanged.
        """

    @abstractmethod
    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""

    async def get_many(self, run_id: str, rollout_ids: Sequence[str]) -> list[RolloutRecord | None]:
        """Return what `get` gives for each id; by default one after the other."""
        return [await self.get(run_id, rollout_id) for rollout_id in rollout_ids]

    @abstractmethod
    async def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`.

        A record that becomes queued goes to the tail of the queue; one that is no longer queued leaves it.

        Returns:
            Whether it was written.
        """

    @abstractmethod
    async def claim(
        self,
        run_id: str,
        limit: int,
        begin: Callable[[RolloutRecord], RolloutRecord],
        *,
        request_id: str | None = None,
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each.

        No record is given to two callers, whoever they are and however many. A request that was given some before is
        given the same, as they are now, without those that were deleted.

        Returns:
            The records as written, oldest in the queue first.
        """

    @abstractmethod
    async def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout.

        Returns:
            One page, and the number of matches on all pages: exact up to 100,000, and with a limit of 0. Else a backend
            may stop counting there, but not before it has counted one more than up to the end of the page.
        """

    @abstractmethod
    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose `lifecycle.deadline` is not after `now`, in O(their number)."""

    @abstractmethod
    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due, in seconds since the epoch; None when none has a deadline."""

    @abstractmethod
    async def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        The backend owns the spans that it is given.

        Returns:
            For each span its sequence id, or None when the attempt already has a span of that id.

        Raises:
            NotFound: When one of the rollouts has been deleted. None of the spans is kept; of those of other rollouts
                some may be where it was deleted just then by another process.
        """

    @abstractmethod
    async def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`, each time another one, from 1.

        Raises:
            NotFound: When one of the rollouts has been deleted.
        """

    @abstractmethod
    async def find_spans(
        self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query
    ) -> tuple[list[Span], int]:
        """Query the spans of a rollout, or of one of its attempts.

        Returns:
            One page, and the number of matches on all pages. The spans belong to the caller.
        """

    async def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id; others are skipped.

        Their names, times and numbers are those that are kept. They are all spans of their rollouts, in the order in
        which `find_spans` gives them. The backend owns the spans that it is given.

        Raises:
            StoreError: By default: then `LightningStore.drop_content` cannot be used.
        """
        raise StoreError(
            f"{type(self).__name__} has no method replace_spans, so it cannot drop the content of spans; delete the "
            "rollouts (delete_rollouts), or add the method"
        )

    @abstractmethod
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
        """Write a document, which thereby becomes the latest of its kind.

        Args:
            run_id: The run that it belongs to.
            kind: Its kind.
            key: Its key.
            value: Its new value.
            revision: Write only if this is its present revision; 0: only if there is none.
            requests: The newest requests that changed it.

        Returns:
            The document as written, or None when it had another revision.
        """

    @abstractmethod
    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""

    @abstractmethod
    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none. Every claim asks for it."""

    @abstractmethod
    async def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""

    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before.

        A request that is kept already stays as it is. The cost does not grow with their number: a call forgets at most
        twice as many that are older than `REQUEST_SECONDS` as it is given.

        By default a document of the kind `state` keeps the newest 1,000 requests of an owner: override it where one
        has more in that time, or where they are to be deleted with their owner.

        Args:
            run_id: The run that they belong to.
            owner: The record that they changed; ids of different owners are different.
            requests: What to keep.
            now: The time, in seconds since the epoch.
            wanted: The id to look up.

        Returns:
            The request of that id, or None when none is kept.
        """
        key = f"lightning.requests/{owner}"
        while True:
            document = await self.get_document(run_id, "state", key)
            kept = {} if document is None else document.value
            added = {
                each.request_id: [now, each.attempt_id, each.digest] for each in requests if each.request_id not in kept
            }
            newest = [*kept.items(), *added.items()][-_MAX_REQUESTS_KEPT:]
            value = {request_id: each for request_id, each in newest if each[0] > now - REQUEST_SECONDS}
            revision = 0 if document is None else document.revision
            if not added or await self.put_document(run_id, "state", key, value, revision=revision) is not None:
                return Request(wanted, *kept[wanted][1:]) if wanted in kept else None

    @abstractmethod
    async def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans, and tell listeners. Returns how many there were."""

    @abstractmethod
    async def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run, and tell listeners of each rollout."""

    @abstractmethod
    async def count(self, run_id: str) -> dict[str, int]:
        """Return the numbers of `rollouts`, `attempts`, `spans`, `resources` and `workers` of a run.

        Each is exact up to 100,000; a backend may stop counting there.
        """

    async def count_live(self, run_id: str) -> dict[RolloutStatus, int]:
        """Return how many rollouts have each status that is not an end, without those that none has.

        The cost may grow with the number of these, and not with that of all. By default `find` is asked for each.
        """
        counts: dict[RolloutStatus, int] = {}
        for status in get_args(RolloutStatus):
            if status not in ENDED:
                _, total = await self.find(run_id, Query((Condition("status", "is", status),), limit=0))
                counts |= {status: total} if total else {}
        return counts

    @abstractmethod
    def watch(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call the listener after each written record, from any thread, until the returned function is called.

        Of what others wrote, where the data is shared, it is called soon, and at least once. The listener returns at
        once and does not raise. The returned function may be called more than once.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the database. Called once, when no other call is under way; nothing is called afterwards.

        A call that takes five seconds more, as where the database is away, is not waited for: it should end with
        `StoreClosed`.
        """
