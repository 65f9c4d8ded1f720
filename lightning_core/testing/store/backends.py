"""What the port of a database promises, asked of the backend itself: races that a facade rarely runs into."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from lightning_core.errors import NotFound, StoreClosed
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import LightningStore, StoreFacade
from lightning_core.store.backend import Change, DocumentKind, StoreBackend
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import StoreBehaviour, begin, present, soon, span_of, turn
from lightning_core.types import PromptTemplate


def marked(record: RolloutRecord, by: str) -> RolloutRecord:
    """Return the record with the name of its writer in its metadata."""
    return record._replace(rollout=record.rollout.model_copy(update={"metadata": {"by": by}}))


class Seen:
    """The calls of a backend, seen from outside."""

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.under_way_at_close: list[str] = []
        self.after_close: list[str] = []
        self.closings = 0
        self.has_closed = False


@contextmanager
def watched(backend: StoreBackend) -> Iterator[Seen]:
    """Watch a backend's calls, each of which yields to the event loop at its beginning and its end."""
    seen = Seen()

    def watching(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if seen.closings:
                seen.after_close.append(name)
            if name == "aclose":
                seen.closings += 1
                seen.under_way_at_close += seen.under_way
            seen.under_way.append(name)
            try:
                await asyncio.sleep(0)
                answer = await method(*args, **kwargs)
                await asyncio.sleep(0)
            finally:
                seen.under_way.remove(name)
            seen.has_closed = seen.has_closed or name == "aclose"
            return answer

        return call

    with ExitStack() as stack:
        for name, declared in vars(StoreBackend).items():
            if inspect.iscoroutinefunction(declared):
                stack.enter_context(patch.object(backend, name, watching(name, getattr(backend, name))))
        yield seen


class BackendBehaviour(StoreBehaviour):
    """Writes check revisions, what is deleted stays deleted, and listeners can leave."""

    def backend_of(self, store: LightningStore) -> StoreBackend | None:
        """Return the backend of a store; None where it is not a `StoreFacade` of this process."""
        return store.backend if isinstance(store, StoreFacade) else None

    @pytest.fixture
    def backend(self, store: LightningStore) -> StoreBackend:
        backend = self.backend_of(store)
        if backend is None:
            pytest.skip(f"{type(store).__name__} has no backend here: backend_of returns None")
        return backend

    async def test_of_two_writers_of_a_record_the_second_is_refused(
        self, store: LightningStore, backend: StoreBackend
    ) -> None:
        rollout_id = (await store.enqueue_rollout("a")).rollout_id
        old = present(await backend.get(store.run_id, rollout_id))
        assert await backend.replace(old, marked(old, "first"))
        assert not await backend.replace(old, marked(old, "second"))
        kept = present(await backend.get(store.run_id, rollout_id))
        assert (kept.rollout.metadata, kept.revision) == ({"by": "first"}, old.revision + 1)

    async def test_a_record_that_was_deleted_is_not_written_again(
        self, store: LightningStore, backend: StoreBackend
    ) -> None:
        old = present(await backend.get(store.run_id, (await store.enqueue_rollout("a")).rollout_id))
        await backend.delete_rollouts(store.run_id, [old.rollout.rollout_id])
        assert not await backend.replace(old, marked(old, "late"))
        assert await backend.get(store.run_id, old.rollout.rollout_id) is None

    @pytest.mark.parametrize("kind", ["resources", "workers", "state"])
    async def test_of_two_writers_of_a_document_the_second_is_refused(
        self, store: LightningStore, backend: StoreBackend, kind: DocumentKind
    ) -> None:
        for revision in (0, 1):
            written = present(await backend.put_document(store.run_id, kind, "key", {"by": "first"}, revision=revision))
            assert written.revision == revision + 1
            for stale in (revision, 7):
                assert await backend.put_document(store.run_id, kind, "key", {"by": "second"}, revision=stale) is None
        kept = present(await backend.get_document(store.run_id, kind, "key"))
        assert (kept.value, kept.revision) == ({"by": "first"}, 2)

    async def test_a_deleted_rollout_takes_no_spans(self, store: LightningStore, backend: StoreBackend) -> None:
        started = await begin(store)
        await store.update_rollout(started.rollout_id, status="cancelled")
        await backend.delete_rollouts(store.run_id, [started.rollout_id])
        with pytest.raises(NotFound):
            await backend.append_spans(store.run_id, [span_of(started)])
        with pytest.raises(NotFound):
            await backend.reserve_sequence_ids(store.run_id, [(started.rollout_id, started.attempt.attempt_id)])
        assert (await backend.count(store.run_id))["spans"] == 0

    async def test_a_listener_that_has_left_hears_nothing_more(
        self, store: LightningStore, backend: StoreBackend
    ) -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[str]()
        left: list[Change] = []

        def note(change: Change) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, change.rollout_id)

        leave = backend.watch(store.run_id, left.append)
        stop = backend.watch(store.run_id, note)

        async def announced(input: str) -> bool:
            rollout_id = (await store.enqueue_rollout(input)).rollout_id
            while await soon(heard.get()) != rollout_id:
                pass
            return any(change.rollout_id == rollout_id for change in left)

        try:
            assert await announced("before")
            leave()
            assert not await announced("after")
        finally:
            leave()
            stop()

    @pytest.mark.parametrize("whole_run", [True, False], ids=["the run", "its rollouts"])
    async def test_a_deletion_is_announced(self, store: LightningStore, backend: StoreBackend, whole_run: bool) -> None:
        ids = [(await store.enqueue_rollout(number)).rollout_id for number in range(2)]
        for rollout_id in ids:
            await store.update_rollout(rollout_id, status="cancelled")
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[Change]()

        def note(change: Change) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, change)

        stop = backend.watch(store.run_id, note)
        try:
            if whole_run:
                await backend.delete_run(store.run_id)
            else:
                await backend.delete_rollouts(store.run_id, ids)
            later = (await store.enqueue_rollout("later")).rollout_id
            deleted: set[str] = set()
            while (change := await soon(heard.get())).rollout_id != later:
                deleted |= {change.rollout_id} if change.status is None else set()
        finally:
            stop()
        assert deleted == set(ids)

    @pytest.mark.parametrize("turns", range(0, 12, 2))
    async def test_a_backend_is_closed_after_the_last_call_and_not_called_afterwards(
        self, store: LightningStore, clock: FakeClock, backend: StoreBackend, turns: int
    ) -> None:
        started = await begin(store, timeout_seconds=100)
        view = store.for_run("another-run")
        with watched(backend) as seen:
            calls = [
                asyncio.create_task(call)
                for call in (
                    store.enqueue_rollout("a"),
                    store.dequeue_rollout("w-1"),
                    store.dequeue_rollout(wait_seconds=None),
                    store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=50),
                    store.add_span(span_of(started)),
                    store.update_worker("w-2"),
                    store.query_rollouts(),
                    view.dequeue_rollout(wait_seconds=30),
                )
            ]
            await turn(turns)  # closing begins at any point of the calls
            closers = [asyncio.create_task(store.aclose()) for _ in range(2)]
            await soon(closers[1])
            assert seen.has_closed
            outcomes = await soon(asyncio.gather(*calls, *closers, return_exceptions=True))
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException) or isinstance(outcome, StoreClosed), outcome
        assert seen.under_way_at_close == []
        assert seen.after_close == []

    async def test_a_run_of_which_documents_alone_are_kept_is_found_again(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        await store.for_run("of-resources").add_resources({"p": PromptTemplate(template="a")})
        await store.for_run("of-state").save_state("apo", 1)
        await store.for_run("of-a-worker").update_worker("w-1")
        await store.for_run("of-a-rollout").enqueue_rollout("a")
        reopened = await self.reopen_store(store, clock=clock)
        backend = None if reopened is None else self.backend_of(reopened)
        if reopened is None or backend is None:
            pytest.skip(f"{type(store).__name__} is not opened again with a backend of its own")
        try:
            kept = [run_id for run_id in await backend.kept_runs() if run_id != store.run_id]
            assert kept == ["of-resources", "of-state", "of-a-worker", "of-a-rollout"]
        finally:
            await reopened.aclose()
