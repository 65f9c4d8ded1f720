"""One thread for the heartbeats of all runners of this process."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

END_SECONDS = 0.5
"""How long a heartbeat that is under way may hold up the end of its runner: somebody waits for that."""


class Pacemaker:
    """A daemon thread with an event loop, which is there while anybody uses it.

    One for the process, because sixty threads that start and end would hold up the event loop of their runners.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, without the thread: in a forked process there is none."""
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def join(self) -> asyncio.AbstractEventLoop:
        """Return the thread's event loop. Each call needs one of `leave`."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="heartbeats", daemon=True)
                self._thread.start()
            return self._loop

    def leave(self) -> threading.Thread | None:
        """Undo one `join`; the last one tells the thread to end, and returns it."""
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None:
                return None
            self._loop.call_soon_threadsafe(self._loop.stop)
            ending, self._loop, self._thread = self._thread, None, None
            return ending

    @asynccontextmanager
    async def running(self, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run a coroutine function in the thread during the block; cancel it, and wait shortly for it, at the end."""
        here, there = asyncio.get_running_loop(), self.join()
        ended = here.create_future()
        started: list[asyncio.Future[None]] = []

        def start() -> None:
            task = asyncio.ensure_future(work(), loop=there)
            started.append(task)
            task.add_done_callback(tell)

        def tell(task: "asyncio.Future[None]") -> None:
            try:
                here.call_soon_threadsafe(ended.cancel)
            except RuntimeError:
                if not here.is_closed():  # nobody waits in a closed loop
                    raise

        there.call_soon_threadsafe(start)
        try:
            yield
        finally:
            try:
                there.call_soon_threadsafe(lambda: started[0].cancel())
                await asyncio.wait((ended,), timeout=END_SECONDS)
            finally:
                thread = self.leave()
                if thread is not None and ended.done():  # it has nothing left to do, and is gone in no time
                    thread.join(END_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        try:
            # Work whose owner has not waited for its end; what is left of it would be destroyed while it is pending.
            if unfinished := asyncio.all_tasks(loop):
                for task in unfinished:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(unfinished, timeout=END_SECONDS))
        finally:
            loop.close()


pacemaker = Pacemaker()
"""That of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pacemaker.forget)
