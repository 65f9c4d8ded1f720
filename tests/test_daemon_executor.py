"""The executor whose threads nobody waits for."""

import threading
from concurrent.futures import Future, wait
from contextvars import ContextVar

import pytest

from lightning_core.concurrency import DaemonExecutor

LIMIT_SECONDS = 20


def test_calls_give_their_results_and_their_errors() -> None:
    executor = DaemonExecutor()
    assert [future.result(LIMIT_SECONDS) for future in [executor.submit(pow, 2, n) for n in range(5)]] == [
        1,
        2,
        4,
        8,
        16,
    ]
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(LIMIT_SECONDS)
    with pytest.raises(SystemExit):
        executor.submit(exit).result(LIMIT_SECONDS)


def test_threads_are_daemons_and_end_when_there_is_nothing_to_call() -> None:
    executor = DaemonExecutor()
    thread = executor.submit(threading.current_thread).result(LIMIT_SECONDS)
    assert thread.daemon
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()


def test_calls_see_the_context_of_whoever_submitted_them() -> None:
    attempt: ContextVar[str] = ContextVar("attempt", default="none")
    executor = DaemonExecutor(max_threads=1)
    futures = []
    for name in ("at-1", "at-2"):
        token = attempt.set(name)
        futures.append(executor.submit(attempt.get))
        attempt.reset(token)
    futures.append(executor.submit(attempt.get))
    assert [future.result(LIMIT_SECONDS) for future in futures] == ["at-1", "at-2", "none"]


def test_calls_beyond_the_threads_wait_for_their_turn() -> None:
    executor = DaemonExecutor(max_threads=2)
    go, started = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        started.release()
        go.wait(LIMIT_SECONDS)

    futures = [executor.submit(call) for _ in range(5)]
    assert started.acquire(timeout=LIMIT_SECONDS)
    assert started.acquire(timeout=LIMIT_SECONDS)
    assert not started.acquire(blocking=False)
    go.set()
    assert not wait(futures, LIMIT_SECONDS).not_done


def test_shutdown_waits_for_nothing_and_drops_what_has_not_begun() -> None:
    executor = DaemonExecutor(max_threads=1)
    go, started = threading.Event(), threading.Event()

    def call() -> str:
        started.set()
        go.wait(LIMIT_SECONDS)
        return "done"

    running: Future[str] = executor.submit(call)
    queued = executor.submit(call)
    assert started.wait(LIMIT_SECONDS)
    executor.shutdown()
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="this executor is shut down and takes no more calls"):
        executor.submit(call)
    go.set()
    assert running.result(LIMIT_SECONDS) == "done"
