"""The thread behind the store: what it commits together, and that nothing of it is left."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning_sqlite import SqliteBackend, SqliteLightningStore

from lightning_core.errors import StoreClosed, StoreError

pytestmark = pytest.mark.usefixtures("nothing_left_running")


def writer_of(store: SqliteLightningStore) -> Any:
    backend: Any = store._backend
    return backend._writer


class Held:
    """Work that holds the thread until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.released.wait(timeout=30)


async def hold(store: SqliteLightningStore) -> tuple[Held, "asyncio.Task[None]"]:
    held = Held()
    task = asyncio.create_task(writer_of(store).do(held))
    await asyncio.to_thread(held.began.wait, 30)
    return held, task


def count_commits(store: SqliteLightningStore) -> Callable[[], int]:
    commits: list[str] = []
    session = writer_of(store).session
    session._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    return lambda: len(commits)


async def test_what_is_asked_for_at_the_same_time_is_committed_together(store: SqliteLightningStore) -> None:
    commits = count_commits(store)
    held, task = await hold(store)
    asked = [asyncio.create_task(store.enqueue_rollout(number, resources_id="v1")) for number in range(100)]
    await asyncio.sleep(0)
    held.released.set()
    rollouts = await asyncio.gather(*asked)
    await task
    assert commits() == 2
    assert [rollout.input for rollout in await store.query_rollouts()] == [rollout.input for rollout in rollouts]


async def test_nothing_is_acknowledged_or_shown_before_its_commit(store: SqliteLightningStore) -> None:
    queued = await store.enqueue_rollout("a")
    session = writer_of(store).session
    at_commit: list[Any] = []

    def look(sql: str) -> None:
        if sql == "COMMIT":
            shown = session.rows.committed((store.run_id, queued.rollout_id)).record.rollout.status
            at_commit.append((shown, asked.done()))

    session._connection.set_trace_callback(look)
    asked = asyncio.ensure_future(store.update_rollout(queued.rollout_id, status="cancelled"))
    await asked
    session._connection.set_trace_callback(None)
    assert {*at_commit} == {("queuing", False)}
    assert session.rows.committed((store.run_id, queued.rollout_id)).record.rollout.status == "cancelled"


async def test_one_that_fails_takes_nobody_with_it(store: SqliteLightningStore) -> None:
    session = writer_of(store).session

    def writes_and_breaks() -> None:
        session.execute("INSERT INTO run VALUES (NULL, 'half-written', 0, 0, 0)")
        raise RuntimeError("a bug")

    held, task = await hold(store)
    asked: list[Any] = [
        asyncio.create_task(store.enqueue_rollout("one")),
        asyncio.create_task(writer_of(store).do(writes_and_breaks)),
        asyncio.create_task(store.enqueue_rollout("two")),
    ]
    await asyncio.sleep(0)
    held.released.set()
    first, broken, last = await asyncio.gather(*asked, return_exceptions=True)
    await task
    assert (first.input, str(broken), last.input) == ("one", "a bug", "two")
    assert [rollout.input for rollout in await store.query_rollouts()] == ["one", "two"]
    runs = await writer_of(store).do(lambda: session.execute("SELECT run_id FROM run").fetchall())
    assert runs == [(store.run_id,)]


async def test_a_cancelled_caller_disturbs_nobody(store: SqliteLightningStore) -> None:
    held, task = await hold(store)
    cancelled, other = (asyncio.create_task(store.enqueue_rollout(name)) for name in ("cancelled", "other"))
    await asyncio.sleep(0)
    cancelled.cancel()
    held.released.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (await other).input == "other"
    await task


async def test_closing_finishes_what_was_asked_for_and_refuses_what_comes(path: Path) -> None:
    store = SqliteLightningStore(path, run_id="run-1")
    backend: Any = store._backend
    held, task = await hold(store)
    asked = [asyncio.create_task(store.enqueue_rollout(number, resources_id="v1")) for number in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed, match="is closed"):
        await store.enqueue_rollout("late")
    held.released.set()
    await closing
    await task
    with pytest.raises(StoreClosed, match="is closed"):
        await backend.get("run-1", "ro-1")
    assert [rollout.input for rollout in await asyncio.gather(*asked)] == [0, 1, 2]
    store = SqliteLightningStore(path, run_id="run-1")
    assert (await store.statistics())["total_rollouts"] == 3
    await store.aclose()


def test_a_store_that_is_forgotten_lets_go_of_its_file(path: Path) -> None:
    store = SqliteLightningStore(path)
    thread = writer_of(store)._thread
    asyncio.run(store.enqueue_rollout("a"))
    del store
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    backend = SqliteBackend(path)
    backend.close()
    backend.close()


def run_script(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_a_forgotten_close_does_not_keep_the_interpreter_from_ending(path: Path) -> None:
    finished = run_script(
        """
        import asyncio, sys
        from lightning_sqlite import SqliteLightningStore
        store = SqliteLightningStore(sys.argv[1])
        asyncio.run(store.enqueue_rollout("a"))
        """,
        path,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert [item.name for item in path.parent.iterdir()] == ["store.sqlite"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_does_not_harm_its_parents_store(path: Path) -> None:
    finished = run_script(
        """
        import asyncio, os, sys
        from lightning_core.errors import StoreError
        from lightning_sqlite import SqliteLightningStore

        async def refused(store):
            try:
                await store.enqueue_rollout("child")
            except StoreError as exc:
                print(exc, flush=True)

        store = SqliteLightningStore(sys.argv[1], run_id="run-1")
        asyncio.run(store.enqueue_rollout("before"))
        if (child := os.fork()) == 0:
            asyncio.run(refused(store))
            sys.exit(0)  # with all that happens when an interpreter ends
        assert os.waitpid(child, 0)[1] == 0
        asyncio.run(store.enqueue_rollout("after"))
        os.kill(os.getpid(), 9)
        """,
        path,
    )
    assert (finished.returncode, finished.stderr) == (-9, "")
    assert "belongs to process" in finished.stdout
    assert "this is its forked child" in finished.stdout

    async def read() -> list[Any]:
        store = SqliteLightningStore(path, run_id="run-1")
        inputs = [rollout.input for rollout in await store.query_rollouts()]
        await store.aclose()
        return inputs

    assert asyncio.run(read()) == ["before", "after"]


async def test_whoever_closes_while_another_closes_waits_for_the_same(path: Path) -> None:
    store = SqliteLightningStore(path)
    held, task = await hold(store)
    first, second = (asyncio.create_task(writer_of(store).aclose()) for _ in range(2))
    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, writer_of(store).aclose()))
    given_up = asyncio.create_task(writer_of(store).aclose())
    await asyncio.wait((first, second, elsewhere, given_up), timeout=0.1)
    assert not any(closing.done() for closing in (first, second, elsewhere, given_up))
    given_up.cancel()
    held.released.set()
    await second
    await SqliteLightningStore(path).aclose()  # the file is free by now
    await asyncio.gather(first, elsewhere, task)
    await store.aclose()


async def test_nobody_waits_for_a_thread_that_has_died(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteLightningStore(path)
    await store.enqueue_rollout("before")
    held, task = await hold(store)
    asked = [asyncio.create_task(store.enqueue_rollout(number)) for number in range(6)]
    for _ in range(5):
        await asyncio.sleep(0)

    def dies(batch: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(writer_of(store), "_carry_out", dies)
    held.released.set()
    broken = r"store\.sqlite has broken: MemoryError\('none left'\); open it again"
    for call in asked:
        with pytest.raises(StoreError, match=broken):
            await asyncio.wait_for(call, 20)
    await task
    with pytest.raises(StoreError, match=broken):
        await store.enqueue_rollout("after")
    assert "lightning.store_broken" in caplog.text
    await asyncio.wait_for(store.aclose(), 20)
    again = SqliteLightningStore(path, run_id=store.run_id)
    assert [rollout.input for rollout in await again.query_rollouts()] == ["before"]
    await again.aclose()
