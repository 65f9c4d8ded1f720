"""The store's interface: what algorithms, runners and tracers may ask of it."""

import abc
import functools
import inspect
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypedDict

from lightning_core.errors import InvalidRequest
from lightning_core.former import former
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    FilterLogic,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    SortOrder,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Unset:
    """The type of `UNSET`, the default of an argument that was not given. None is a value like any other."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


class LightningStoreCapabilities(TypedDict, total=False):
    """What a store can do; a missing key means that it cannot."""

    thread_safe: bool
    """It may be called from any thread and any event loop."""
    async_safe: bool
    """Concurrent coroutines may call it."""
    zero_copy: bool
    """All callers in this process share one copy of the data."""
    otlp_traces: bool
    """It has an OTLP endpoint."""


class LightningStoreStatistics(TypedDict, total=False):
    """How much a store holds of its run."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    live_rollouts: dict[RolloutStatus, int]
    """The rollouts that have not ended, by status; a status without any is left out."""
    uptime: float
    """Seconds since the store was opened."""


class LightningStore(ABC):
    """Where rollouts, attempts, spans, resources, workers and an algorithm's state are kept, for one run.

    Algorithms and runners meet only here. Every method is atomic, and may be called concurrently. What a caller
    passes in or gets back is a copy: changing it does not change the store. Time is in seconds since the epoch,
    durations are in seconds.

    A request whose answer was lost may be repeated: with the same `request_id` it has one effect, and the answer says
    how that stands. (Spans are told apart by their ids, and need none.) A request is remembered for a day; one that
    made a rollout, or began an attempt, for as long as the rollout is kept. What is deleted is forgotten, with the
    requests that made or changed it. An id that comes again for the same thing with other arguments is refused with
    `InvalidRequest`. New rollouts are the same by their inputs and modes: their limits, metadata and resources stay as
    the first request gave them, so that work can be continued with newer ones.

    Every method raises `NotFound` for an id that the run does not have (unless it returns None for it), `StoreClosed`
    after `aclose`, and `InvalidRequest` for an argument out of its range. Those three, and `InvalidTransition`, are
    `StoreError`s; all but `StoreClosed` are also `ValueError`s.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in OPERATIONS & cls.__dict__.keys():
            operation, declared = cls.__dict__[name], getattr(LightningStore, name)
            theirs = inspect.signature(operation).parameters
            missing = [each for each in inspect.signature(declared).parameters if each not in theirs]
            if missing and not any(each.kind is each.VAR_KEYWORD for each in theirs.values()):
                met = f"{cls.__name__}.{name} takes no {', '.join(missing)}; add that to its parameters"
                setattr(cls, name, former(met).adapt(operation, declared))

    is_remote: ClassVar[bool] = False
    """Whether it is served by another process, whose runners may be alive when this process is not."""

    @property
    def run_id(self) -> str:
        """The run whose records this store shows; it neither sees nor touches those of another."""
        run_id: str = self.__dict__.setdefault("_own_run_id", f"run-{secrets.token_hex(8)}")
        return run_id

    def find_run_id(self) -> str:
        """Return `run_id`, and ask for it first where the store is somewhere else. That blocks the caller."""
        return self.run_id

    async def kept_runs(self) -> Sequence[str]:
        """Return the runs that are kept when this store is gone, oldest first; empty where that is not known."""
        return ()

    def for_run(self, run_id: str) -> "LightningStore":
        """Return a view of the same data for another run. Closing the view leaves the data open.

        Raises:
            InvalidRequest: When the store keeps one run only, as one without this method does.
        """
        if run_id != self.run_id:
            raise InvalidRequest(f"{type(self).__name__} keeps run {self.run_id} only; got {run_id!r}")
        return self

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """What this store can do."""
        return {}

    @property
    def lease_seconds(self) -> float | None:
        """How long, in seconds, a worker that sends heartbeats may be silent before it loses its attempt.

        None where it is not known yet, as before the first answer of a server. After the store was opened again, or
        its process stood still, every lease has one more term.
        """
        return None

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        """Keep deadlines during the block, also while no caller waits: for a process that serves the store."""
        return nullcontext()

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        """Call the listener with a rollout's id after each change of it, until the returned function is called.

        The listener is called from any thread, returns at once and does not raise.

        Returns:
            A function that may be called more than once; None where this store cannot tell of changes.
        """
        return None

    def otlp_traces_endpoint(self) -> str:
        """Return where OpenTelemetry's exporters send spans.

        Raises:
            NotImplementedError: When the store is not served over HTTP.
        """
        raise NotImplementedError(f"{type(self).__name__} is not served over HTTP; a LightningStoreServer serves it")

    def attempt_key(self, attempt: Attempt) -> str | None:
        """Return the key that came with the claim of an attempt and opens only that attempt; None without keys."""
        return None

    async def statistics(self) -> LightningStoreStatistics:
        """Return how much the store holds."""
        return {"name": type(self).__name__}

    async def aclose(self) -> None:  # noqa: B027  # not every store has something to close
        """Close the store. Waits end with `StoreClosed`; what else is under way has five seconds to finish."""

    # Rollouts

    @abstractmethod
    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        worker_id: str | None = None,
        *,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and begin its first attempt at once, past the queue.

        Args:
            input: The task.
            mode: What it is for.
            resources_id: The version of the resources to use, which may come later; None for the latest one there is
                now, if any.
            config: Limits and retry policy; None for the defaults.
            metadata: Kept with the rollout.
            worker_id: Who executes the attempt.
            request_id: Makes a repetition of this request harmless.

        Returns:
            The rollout, `preparing`, with its attempt.
        """

    @abstractmethod
    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Rollout:
        """Create a rollout at the tail of the queue; it is `queuing`. The arguments are those of `start_rollout`.

        Without any resources yet, it gets those that are the latest at the time of the claim.
        """

    @abstractmethod
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest], *, request_id: str | None = None
    ) -> Sequence[Rollout]:
        """Create rollouts at the tail of the queue, all or, when one is refused, none; return them in that order."""

    async def dequeue_rollout(
        self, worker_id: str | None = None, *, wait_seconds: float | None = 0.0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest queued rollout and begin an attempt.

        At most one caller gets a rollout. First in, first out among all that are queued; a retry queues at the tail.
        A rollout without resources gets the latest ones, if there are some by now. A worker that sends heartbeats holds
        a lease on its attempt: when it is silent for longer, the attempt is taken from it, and the rollout is queued
        again.

        Args:
            worker_id: Who executes the attempt; its worker record becomes `busy`.
            wait_seconds: How long to wait for work when there is none: 0 not at all, None without limit. The wait is
                notified, so a rollout is claimed as soon as it is queued.
            request_id: Makes a repetition of this request harmless: it gets the same rollout, or, when that was taken
                from it in the meantime, none. One that was answered with None gets None again.

        Returns:
            The rollout, `preparing`, with its new attempt; None when there was no work.

        Raises:
            RunEnded: When the run has ended, or ends during the wait; see `end_run`.
        """
        claimed = await self.dequeue_many_rollouts(
            limit=1, worker_id=worker_id, wait_seconds=wait_seconds, request_id=request_id
        )
        return claimed[0] if claimed else None

    @abstractmethod
    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float | None = 0.0,
        request_id: str | None = None,
    ) -> Sequence[AttemptedRollout]:
        """Claim up to `limit` queued rollouts, as `dequeue_rollout` does; waits only while there is none at all.

        A worker's heartbeats renew the lease on its last attempt, or on those that they name; see `update_worker`.

        Returns:
            The claimed rollouts, oldest in the queue first; for a `limit` below 1 only what this `request_id` claimed
            before. A request that was answered with none claims none from then on.

        Raises:
            RunEnded: When the run has ended, or ends during the wait; see `end_run`.
        """

    @abstractmethod
    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, *, request_id: str | None = None
    ) -> AttemptedRollout:
        """Begin another attempt of a rollout that has not ended, past the queue and past `max_attempts`.

        An attempt of it that still runs is given up.

        Raises:
            InvalidTransition: When the rollout has ended.
        """

    @abstractmethod
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return a rollout (an `AttemptedRollout` once it has an attempt), or None."""

    @abstractmethod
    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        mode_in: Sequence[RolloutMode] | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Return the rollouts that meet the conditions, which are named after the fields.

        Args:
            filter_logic: Whether all of the given conditions must hold, or any.
            sort_by: A field that holds numbers or strings; None for the order of creation.
            limit: The size of the page; -1 for all.
            offset: How many matches to skip.
            status: Older name of `status_in`, which wins.
            rollout_ids: Older name of `rollout_id_in`, which wins.
        """

    @abstractmethod
    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        *,
        request_id: str | None = None,
    ) -> Rollout:
        """Change the fields that are given.

        A status that queues the rollout puts it at the tail of the queue; with `running` it leaves the queue, and is
        the caller's to end where no attempt is being executed. Setting a status is idempotent.

        Raises:
            InvalidTransition: When the rollout has ended with another status.
        """

    @abstractmethod
    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None, min_ended: int | None = None
    ) -> Sequence[Rollout]:
        """Wait until these rollouts have ended, or so many of them.

        Args:
            rollout_ids: What to wait for.
            timeout: The longest wait, in seconds; None for no limit, 0 to look once.
            min_ended: How many of them to wait for at least; None for all.

        Returns:
            Those that have ended by then, in the order of `rollout_ids`. One that does not exist, or is deleted during
            the wait, is neither waited for nor returned.
        """

    # Attempts

    @abstractmethod
    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Return the attempts of a rollout, oldest first unless told otherwise; none of one that does not exist."""

    @abstractmethod
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the newest attempt of a rollout; None when it has none yet, or does not exist."""

    @abstractmethod
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        *,
        add_metadata: Mapping[str, Any] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Attempt:
        """Change the fields that are given, and let the rollout and the worker follow.

        `succeeded` ends the rollout. `failed`, `timeout` and `unresponsive` end it too, unless its config asks for a
        retry, which queues it again. An attempt that was given up changes itself only. The same status twice is one
        effect.

        Args:
            rollout_id: The rollout.
            attempt_id: The attempt; `"latest"` for the newest one.
            status: Its new status.
            worker_id: Who executes it now. A worker that executed it before is released.
            last_heartbeat_time: When it last gave a sign of life.
            metadata: Replaces its metadata, but for the final reward, which is the store's.
            add_metadata: Set over its metadata, name by name, in one step: what others write meanwhile stays.
            request_id: Makes a repetition of this request harmless, also when something else happened in between.

        Raises:
            InvalidTransition: When the attempt has ended with another status.
        """

    async def report_fault(
        self, rollout_id: str, attempt_id: str, reason: str, *, request_id: str | None = None
    ) -> Attempt:
        """End an attempt for a reason that is not the agent's: the worker, the store or the model was out of reach.

        The rollout is queued again without using up one of its attempts, at most three times. The attempt keeps the
        reason in its metadata, under `fault`. A second fault of the same attempt is one effect, and one of an attempt
        that was given up ends nothing but itself.

        A store without this method fails the attempt, which its retry policy governs.

        Args:
            rollout_id: The rollout.
            attempt_id: The attempt, by its own id: `"latest"` is another one as soon as it is begun.
            reason: What happened, in a few words.
            request_id: Makes a repetition of this request harmless.

        Raises:
            InvalidTransition: When the attempt has ended by itself.
        """
        metadata = {"fault": reason}
        return await self.update_attempt(
            rollout_id, attempt_id, status="failed", add_metadata=metadata, request_id=request_id
        )

    async def report_dead_workers(self, reason: str) -> int:
        """Report a fault of every attempt that is being executed, because all workers are dead; see `report_fault`.

        Returns:
            How many attempts there were.
        """
        running = [
            rollout.attempt
            for rollout in await self.query_rollouts(status_in=("preparing", "running"))
            if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in ("preparing", "running")
        ]
        for attempt in running:
            await self.report_fault(attempt.rollout_id, attempt.attempt_id, reason)
        return len(running)

    # Spans

    async def add_span(self, span: Span) -> Span | None:
        """Keep a span.

        The first span of an attempt makes it, and its rollout, `running`, and so does one of an `unresponsive` attempt;
        every span is a sign of life. A span of an older attempt than the newest changes that attempt only; one of an
        attempt that has ended, or whose rollout has ended or was queued again while it ran, changes no status. The
        attempt's metadata have the final reward of its spans; see `lightning_core.rewards.FINAL_REWARD`.

        Args:
            span: Names its rollout and attempt. A `sequence_id` of 0 asks the store to number it.

        Returns:
            The span as stored, or None when the attempt already has one of this `span_id`.
        """
        stored = await self.add_many_spans([span])
        return stored[0] if stored else None

    @abstractmethod
    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Keep spans, of one attempt or many, as `add_span` does; none when an attempt is unknown.

        Returns:
            The spans as stored, without those that were there already.
        """

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        """Convert a finished OpenTelemetry span and keep it, as `add_span` does; None lets the store number it."""
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))

    @abstractmethod
    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve the next sequence id of an attempt, from 1. What is not used leaves a gap, which means nothing."""

    @abstractmethod
    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Reserve one sequence id for each `(rollout_id, attempt_id)`; the same pair may stand there many times."""

    @abstractmethod
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Return the spans of a rollout that meet the conditions, which are those of `query_rollouts`.

        There are none of a rollout or an attempt that does not exist.

        Args:
            rollout_id: The rollout.
            attempt_id: One of its attempts, `"latest"` for the newest, None for all.
            sort_by: A field that holds numbers or strings; None for the order of arrival.
        """

    # Resources

    @abstractmethod
    async def add_resources(
        self, resources: NamedResources, *, parent_id: str | None = None, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Add a new version of the resources, which becomes the latest one.

        Args:
            resources: The bundle.
            parent_id: The version that it was made from. With lightning-legacy, a store class whose method lacks this
                parameter works all the same, and keeps no parents.
            request_id: Makes a repetition of this request harmless. The parent stays as the first request gave it.

        Raises:
            NotFound: When there is no version `parent_id`.
        """

    @abstractmethod
    async def update_resources(
        self, resources_id: str, resources: NamedResources, *, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Replace the bundle of a version, or add one under this id; it becomes the latest one.

        The version keeps its parent; one that is added has none.
        """

    @abstractmethod
    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Return a version of the resources, or None."""

    @abstractmethod
    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the version that was added or updated last, or None when there is none."""

    @abstractmethod
    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return the versions of the resources that fulfil all of the conditions, oldest first by default."""

    # Workers

    @abstractmethod
    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: Mapping[str, Any] | Unset = UNSET,
        *,
        attempts: Sequence[tuple[str, str]] | Unset = UNSET,
        request_id: str | None = None,
    ) -> Worker:
        """Record a heartbeat of a worker, which is made known by it.

        It is also a sign of life of the attempts that the worker executes, and renews its leases on them. From its
        first heartbeat on, a worker has to send more: the attempts of one that falls silent are taken from it.

        Args:
            worker_id: The worker.
            heartbeat_stats: What it says of itself; replaces what it said before.
            attempts: What it executes, each as `(rollout_id, attempt_id)`; empty when it is idle. What has ended, was
                deleted, or belongs to another worker is passed over. Where it is not given, the attempt that the
                worker's record names: the newest that it claimed or was given.
            request_id: Makes a repetition of this request harmless.
        """

    @abstractmethod
    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return a worker, or None."""

    @abstractmethod
    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Return the workers that fulfil the conditions, in the order of their first appearance by default."""

    # The saved state of algorithms

    async def save_state(self, name: str, state: Any, *, request_id: str | None = None) -> None:
        """Keep an algorithm's state under a name, in place of what was there.

        A store without this method keeps it for as long as the store is there.

        Args:
            name: Whose state it is.
            state: A value that JSON can hold; finite numbers only.
            request_id: Makes a repetition of this request harmless, also when something else was saved in between.

        Raises:
            InvalidRequest: When JSON cannot hold it. What was there stays.
        """
        try:
            text = json.dumps(state, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(f"the state of {name!r} cannot be saved as JSON: {exc}") from exc
        self.__dict__.setdefault("_own_states", {})[name] = text

    async def load_state(self, name: str) -> Any:
        """Return the state that was saved last under this name, or None."""
        text = self.__dict__.get("_own_states", {}).get(name)
        return None if text is None else json.loads(text)

    # The run

    async def begin_run(self, *, request_id: str | None = None) -> None:
        """Let a run that had ended go on. A new run need not be begun."""
        self.__dict__["_own_run_has_ended"] = False

    async def end_run(self, *, request_id: str | None = None) -> None:
        """Let every claim, also one that waits, raise `RunEnded` until the run begins again, whatever is queued.

        What was claimed before can still be reported on.
        """
        self.__dict__["_own_run_has_ended"] = True

    # Deletion

    @abstractmethod
    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts that have ended, with their attempts and spans: all of them or, when one is refused, none.

        Those that do not exist are skipped, so that the request can be repeated.

        Returns:
            How many there were.

        Raises:
            InvalidTransition: When one of them has not ended; cancel it first.
        """

    @abstractmethod
    async def drop_content(self, rollout_ids: Sequence[str]) -> int:
        """Take what was said out of the spans of rollouts that have ended: of none when one of them is refused.

        Of attributes, numbers and rewards stay, and the names of models, tools, agents, operations, tags and errors.
        Other texts, and lists such as those of token ids, are gone for good; so are the attributes of events, links and
        resources, and descriptions of errors. Spans keep their names. Rollouts and attempts stay as they are, with
        inputs, and the message and traceback of a failure in `metadata`. Rollouts that do not exist are skipped.

        Returns:
            How many of them had content.

        Raises:
            InvalidTransition: When one of them has not ended.
        """

    @abstractmethod
    async def delete_run(self) -> None:
        """Delete everything that belongs to this run, whatever its state. Waits for its rollouts end."""


def _needed(declared: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(declared)
    async def call(self: LightningStore, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method {declared.__name__}, which is needed here")

    call.__isabstractmethod__ = False  # type: ignore[attr-defined]  # `wraps` has copied the mark
    return call


OPERATIONS: Final = frozenset(
    name for name, method in vars(LightningStore).items() if inspect.iscoroutinefunction(method)
)
"""The names of all methods that are awaited."""

# A type checker asks for all of them. At runtime a class that lacks some can be used for the rest, as in 0.3.
for _name in LightningStore.__abstractmethods__:
    setattr(LightningStore, _name, _needed(getattr(LightningStore, _name)))
abc.update_abstractmethods(LightningStore)
