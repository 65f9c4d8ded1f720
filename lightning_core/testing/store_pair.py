"""A property test of two stores: under the same random calls and the same clock, they give the same answers.

Needs hypothesis, which the other suites do not.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightning_core.errors import LightningError
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing.clock import FakeClock
from lightning_core.types import (
    AttemptStatus,
    EnqueueRolloutRequest,
    Event,
    OtelResource,
    PaginatedResult,
    PromptTemplate,
    RolloutConfig,
    RolloutStatus,
    Span,
)

LEASE_SECONDS = 4.0
WORKERS = ("w-1", "w-2")
RUN_ID = "run-of-two-stores"

_POSITIONS = st.integers(0, 9)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = st.dictionaries(st.sampled_from(["a", "b", "é"]), _VALUES, max_size=2)
_CONFIGS = st.builds(
    RolloutConfig,
    timeout_seconds=st.none() | st.integers(1, 9),
    unresponsive_seconds=st.none() | st.integers(1, 9),
    max_attempts=st.integers(1, 3),
    retry_condition=st.lists(st.sampled_from(["failed", "timeout", "unresponsive"]), unique=True),
)
_PAGES: dict[str, Any] = {
    "sort_order": st.sampled_from(["asc", "desc"]),
    "limit": st.integers(-1, 4),
    "offset": st.integers(0, 3),
}

Call = Callable[[LightningStore], Awaitable[Any]]


class StorePair(RuleBasedStateMachine):
    """Sends every call to a store and to the memory store, and compares what they answer and what they then hold.

    Subclass it, and run it with hypothesis:

        class MyPair(StorePair):
            def make_store(self, *, clock, run_id, lease_seconds):
                return MyStore(new_database(), clock=clock, run_id=run_id, lease_seconds=lease_seconds)

            async def reopen_store(self, store, *, clock, lease_seconds):
                await store.aclose()
                return MyStore(...)

        TestMyPair = MyPair.TestCase
        TestMyPair.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.clock = FakeClock(start=0.0)
        self._kept = MemoryBackend()
        self.model = self._open_model()
        self.store: LightningStore | None = None
        self.ids: list[str] = []
        self.requests = 0
        self.sent: list[Call] = []

    def _open_model(self) -> LightningStore:
        return StoreFacade(self._kept, clock=self.clock, run_id=RUN_ID, lease_seconds=LEASE_SECONDS)

    def make_store(self, *, clock: FakeClock, run_id: str, lease_seconds: float) -> LightningStore:
        """Return an empty store. Called within the event loop in which it will be used."""
        raise NotImplementedError("override make_store: return an empty store")

    async def reopen_store(
        self, store: LightningStore, *, clock: FakeClock, lease_seconds: float
    ) -> LightningStore | None:
        """Close a store and return a new one over the same data, or None where nothing outlives the store."""
        return None

    @initialize()
    def begin(self) -> None:
        async def made() -> LightningStore:
            return self.make_store(clock=self.clock, run_id=RUN_ID, lease_seconds=LEASE_SECONDS)

        self.store = self.loop.run(made())

    def teardown(self) -> None:
        for store in (self.model, self.store):
            if store is not None:
                self.loop.run(store.aclose())
        self.loop.close()

    # Asking both

    def both(self, call: Call) -> Any:
        """Send a call to both, check that they answer alike, and return the answer; None where they refuse."""
        assert self.store is not None
        expected = self.loop.run(_outcome(self.model, call))
        found = self.loop.run(_outcome(self.store, call))
        assert found == expected
        refused, answer = expected
        return None if refused else answer

    def change(self, call: Callable[[LightningStore, str], Awaitable[Any]]) -> Any:
        """Send a request that changes something, with an id, so that both make the same ids of it."""
        self.requests += 1
        request_id = f"r-{self.requests}"

        def sent(store: LightningStore) -> Awaitable[Any]:
            return call(store, request_id)

        answer = self.both(sent)
        if answer:  # a claim that got nothing did nothing, and may do something later
            self.sent = [*self.sent, sent][-5:]
        return answer

    def pick(self, position: int) -> str:
        return self.ids[position % len(self.ids)]

    def take_a_number(self, rollout_id: str, attempt_id: str) -> None:
        self.both(lambda store: store.get_next_span_sequence_id(rollout_id, attempt_id))

    def pick_attempt(self, position: int, which: int) -> tuple[str, str] | None:
        rollout_id = self.pick(position)
        attempts = self.loop.run(_attempts(self.model, rollout_id))
        return (rollout_id, attempts[-1 - which % len(attempts)]) if attempts else None

    # What happens to them

    @rule(inputs=st.lists(_VALUES, min_size=1, max_size=3), config=_CONFIGS, metadata=st.none() | _FIELDS)
    def enqueue(self, inputs: list[Any], config: RolloutConfig, metadata: dict[str, Any] | None) -> None:
        requests = [EnqueueRolloutRequest(input=input, config=config, metadata=metadata) for input in inputs]
        queued = self.change(lambda store, request_id: store.enqueue_many_rollouts(requests, request_id=request_id))
        self.ids += [rollout.rollout_id for rollout in queued]

    @rule(input=_VALUES, config=_CONFIGS, mode=st.sampled_from([None, "train", "val"]), worker=st.sampled_from(WORKERS))
    def start_rollout(self, input: Any, config: RolloutConfig, mode: Any, worker: str) -> None:
        started = self.change(
            lambda store, request_id: store.start_rollout(
                input, mode, config=config, worker_id=worker, request_id=request_id
            )
        )
        self.ids.append(started.rollout_id)

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> None:
        self.change(
            lambda store, request_id: store.dequeue_many_rollouts(limit=limit, worker_id=worker, request_id=request_id)
        )

    @precondition(lambda self: self.ids)
    @rule(position=_POSITIONS, worker=st.sampled_from(WORKERS))
    def start_attempt(self, position: int, worker: str) -> None:
        rollout_id = self.pick(position)
        self.change(lambda store, request_id: store.start_attempt(rollout_id, worker, request_id=request_id))

    @rule(worker=st.sampled_from(WORKERS), stats=_FIELDS)
    def heartbeat(self, worker: str, stats: dict[str, Any]) -> None:
        self.change(lambda store, request_id: store.update_worker(worker, stats, request_id=request_id))

    @precondition(lambda self: self.ids)
    @rule(
        position=_POSITIONS,
        which=_POSITIONS,
        spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), _FIELDS), min_size=1, max_size=4),
    )
    def add_spans(self, position: int, which: int, spans: list[tuple[int, int, dict[str, Any]]]) -> None:
        if picked := self.pick_attempt(position, which):
            made = [_span(*picked, number, sequence_id, attributes) for number, sequence_id, attributes in spans]
            self.both(lambda store: store.add_many_spans(made))

    @precondition(lambda self: self.ids)
    @rule(position=_POSITIONS, which=_POSITIONS)
    def reserve_a_sequence_id(self, position: int, which: int) -> None:
        if picked := self.pick_attempt(position, which):
            self.take_a_number(*picked)

    @precondition(lambda self: self.ids)
    @rule(
        position=_POSITIONS,
        which=_POSITIONS,
        status=st.sampled_from(get_args(AttemptStatus)),
        metadata=st.none() | _FIELDS,
        added=_FIELDS,
    )
    def update_attempt(
        self, position: int, which: int, status: AttemptStatus, metadata: dict[str, Any] | None, added: dict[str, Any]
    ) -> None:
        if picked := self.pick_attempt(position, which):
            self.change(
                lambda store, request_id: store.update_attempt(
                    *picked, status=status, metadata=metadata, add_metadata=added, request_id=request_id
                )
            )

    @precondition(lambda self: self.ids)
    @rule(position=_POSITIONS, which=_POSITIONS)
    def report_fault(self, position: int, which: int) -> None:
        if picked := self.pick_attempt(position, which):
            self.change(lambda store, request_id: store.report_fault(*picked, "it died", request_id=request_id))

    @precondition(lambda self: self.ids)
    @rule(position=_POSITIONS, status=st.sampled_from(get_args(RolloutStatus)))
    def update_status(self, position: int, status: RolloutStatus) -> None:
        rollout_id = self.pick(position)
        self.change(lambda store, request_id: store.update_rollout(rollout_id, status=status, request_id=request_id))

    @precondition(lambda self: self.ids)
    @rule(position=_POSITIONS, input=_VALUES, config=_CONFIGS, metadata=st.none() | _FIELDS)
    def update_task(self, position: int, input: Any, config: RolloutConfig, metadata: dict[str, Any] | None) -> None:
        rollout_id = self.pick(position)
        self.change(
            lambda store, request_id: store.update_rollout(
                rollout_id, input=input, config=config, metadata=metadata, request_id=request_id
            )
        )

    @rule(number=st.integers(1, 2), template=st.text(max_size=5))
    def write_resources(self, number: int, template: str) -> None:
        bundle: Any = {"prompt": PromptTemplate(template=template, engine="f-string")}
        self.change(lambda store, request_id: store.update_resources(f"rs-{number}", bundle, request_id=request_id))

    @rule(name=st.sampled_from(["apo", "other"]), state=_VALUES)
    def save_state(self, name: str, state: Any) -> None:
        self.change(lambda store, request_id: store.save_state(name, state, request_id=request_id))
        self.both(lambda store: store.load_state(name))

    @precondition(lambda self: self.ids)
    @rule(positions=st.lists(_POSITIONS, min_size=1, max_size=2))
    def delete(self, positions: list[int]) -> None:
        picked = list({self.pick(position) for position in positions})
        if self.both(lambda store: store.delete_rollouts(picked)):
            self.ids = [rollout_id for rollout_id in self.ids if rollout_id not in picked]
            self.sent = []  # with what is deleted, the requests that made it are forgotten

    @precondition(lambda self: len(self.ids) > 5)
    @rule()
    def delete_everything(self) -> None:
        self.both(lambda store: store.delete_run())
        self.ids, self.sent = [], []

    @precondition(lambda self: self.sent)
    @rule(position=_POSITIONS)
    def repeat_a_request(self, position: int) -> None:
        self.both(self.sent[position % len(self.sent)])

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.loop.run(self.clock.advance(seconds))

    @rule()
    def reopen(self) -> None:
        assert self.store is not None
        reopened = self.loop.run(self.reopen_store(self.store, clock=self.clock, lease_seconds=LEASE_SECONDS))
        if reopened is not None:
            self.store, self.model = reopened, self._open_model()
        for rollout_id in self.ids:
            if attempts := self.loop.run(_attempts(self.model, rollout_id)):
                self.take_a_number(rollout_id, attempts[-1])

    # What they hold

    @rule(
        statuses=st.none() | st.sets(st.sampled_from(get_args(RolloutStatus))),
        modes=st.none() | st.sets(st.sampled_from(["train", "val"])),
        contains=st.none() | st.sampled_from(["", "ro-", "a", "1"]),
        logic=st.sampled_from(["and", "or"]),
        sort_by=st.sampled_from([None, "rollout_id", "start_time", "end_time", "mode", "status", "resources_id"]),
        page=st.fixed_dictionaries(_PAGES),
    )
    def query_rollouts(
        self, statuses: Any, modes: Any, contains: str | None, logic: Any, sort_by: str | None, page: dict[str, Any]
    ) -> None:
        self.both(
            lambda store: store.query_rollouts(
                status_in=statuses,
                mode_in=modes,
                rollout_id_contains=contains,
                rollout_id_in=self.ids[:3],
                filter_logic=logic,
                sort_by=sort_by,
                **page,
            )
        )

    @precondition(lambda self: self.ids)
    @rule(
        position=_POSITIONS,
        name=st.none() | st.sampled_from(["step-1", "step-2"]),
        contains=st.none() | st.sampled_from(["", "0", "1", "x"]),
        logic=st.sampled_from(["and", "or"]),
        sort_by=st.sampled_from(["sequence_id", "name", "span_id", "start_time", "end_time", "attempt_id", None]),
        page=st.fixed_dictionaries(_PAGES),
    )
    def query_spans(
        self,
        position: int,
        name: str | None,
        contains: str | None,
        logic: Any,
        sort_by: str | None,
        page: dict[str, Any],
    ) -> None:
        rollout_id = self.pick(position)
        self.both(
            lambda store: store.query_spans(
                rollout_id,
                "latest",
                name=name,
                span_id_contains=contains,
                parent_id_contains=contains,
                filter_logic=logic,
                sort_by=sort_by,
                **page,
            )
        )

    @invariant()
    def both_hold_the_same(self) -> None:
        if self.store is None:
            return
        expected = self.loop.run(_held(self.model, self.ids))
        assert self.loop.run(_held(self.store, self.ids)) == expected


async def _outcome(store: LightningStore, call: Call) -> tuple[bool, Any]:
    """Return whether the store refused the call, and its answer or what it said."""
    try:
        answer = await call(store)
    except LightningError as exc:
        return True, (type(exc), str(exc))
    if isinstance(answer, PaginatedResult):
        return False, (list(answer), answer.total, answer.limit, answer.offset)
    return False, list(answer) if isinstance(answer, tuple) else answer


async def _attempts(store: LightningStore, rollout_id: str) -> list[str]:
    return [attempt.attempt_id for attempt in await store.query_attempts(rollout_id)]


async def _held(store: LightningStore, ids: list[str]) -> dict[str, Any]:
    """Return all that a store shows of its run."""
    statistics = await store.statistics()
    return {
        "rollouts": list(await store.query_rollouts()),
        "attempts": [list(await store.query_attempts(rollout_id)) for rollout_id in ids],
        "spans": [
            list(await store.query_spans(rollout_id, attempt_id))
            for rollout_id in ids
            for attempt_id in await _attempts(store, rollout_id)
        ],
        "all spans": [
            sorted(await store.query_spans(rollout_id, sort_by=None), key=lambda span: (span.attempt_id, span.span_id))
            for rollout_id in ids
        ],
        "workers": list(await store.query_workers()),
        "resources": list(await store.query_resources()),
        "latest resources": await store.get_latest_resources(),
        "statistics": {name: value for name, value in statistics.items() if name.startswith("total_")},
    }


def _span(rollout_id: str, attempt_id: str, number: int, sequence_id: int, attributes: dict[str, Any]) -> Span:
    span = Span.from_attributes(
        attributes=attributes,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        name=f"step-{number % 3}",
        trace_id=f"{number % 2:032x}",
        span_id=f"{number:016x}",
        parent_id=f"{number - 1:016x}" if number % 2 else None,
        start_time=float(number % 4),
        end_time=None if number % 3 else 10.0 - number,
        resource=OtelResource(attributes={"service.name": f"service-{number % 2}"}),
    )
    if number == 7:
        span.events = [Event(name="a", attributes=attributes, timestamp=1.5)]
    return span
