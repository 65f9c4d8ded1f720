"""The workers of a proxy: kept going, replaced when they die, steered as one."""

import asyncio
import io
import logging
import pickle
import secrets
import socket
import subprocess
import sys
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lightning_http.channel import Channel, ChannelClosed, describe_exit
from lightning_http.listener import bind

from lightning_core.budget import Budget
from lightning_core.errors import (
    AttemptLimitReached,
    BudgetExhausted,
    ConfigError,
    LightningError,
    ProxyError,
    RegistryError,
    StoreUnavailable,
)
from lightning_core.store import LightningStore
from lightning_proxy.backend import Backend
from lightning_proxy.control import CONTROLS, CallsLost, ProxyServer, Settings
from lightning_proxy.limiter import Drained
from lightning_proxy.owner import MAX_BOUND, Owner
from lightning_proxy.replicas import SessionAffinity
from lightning_proxy.service import STOP_SECONDS
from lightning_proxy.spans import Capture
from lightning_proxy.spending import LocalSpending, RefusalWaits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """The same for all workers, and for those that replace them."""

    store: LightningStore | None
    """None to record nothing. What workers get is a client of its server."""
    key: str | None = field(repr=False)
    settings: Settings
    """Of one worker."""
    capture: Capture
    has_limits: bool = False
    """Whether a budget or limits of attempts count calls."""


@dataclass(slots=True)
class State:
    """The changes since the start; a worker that starts later gets all of them."""

    model_list: Sequence[Mapping[str, Any]] = ()
    list_version: int = 1
    weight_version: str | None = None
    is_paused: bool = False
    pause_seconds: float | None = None
    """How long calls wait for the end of the pause; None for as long as usual."""
    bound: dict[str, Owner] = field(default_factory=dict)


ERRORS: tuple[type[LightningError], ...] = (
    AttemptLimitReached,
    BudgetExhausted,
    CallsLost,
    ConfigError,
    RegistryError,
    StoreUnavailable,
    ProxyError,
)
"""What may be raised at the other end of a channel; anything else is a `ProxyError` there. A subclass stands before its
base."""


def require_sendable(model_list: Sequence[Mapping[str, Any]]) -> None:
    """Check that workers can have a model list.

    Raises:
        ConfigError: Names the entry that they cannot, and why.
    """
    for number, entry in enumerate(model_list):
        name = f"model_list[{number}] ({entry.get('model_name')})"
        backend = entry.get("backend")
        if isinstance(backend, Backend):
            raise ConfigError(
                f"{name}: its backend is an object of this process ({type(backend).__name__}), and a proxy with "
                "several workers answers calls in others; leave workers out, or name the backend: an installed one, or "
                "'package.module:Class'"
            )
        _packed(name, entry)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__!r} is defined in the program itself")
        return NotImplemented


def _packed(what: str, value: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"{what} cannot be sent to the proxy's workers: {exc}; define it at the top level of a module that can be "
            "imported, or leave workers out"
        ) from exc
    return buffer.getvalue()


def sum_of(statuses: Sequence[dict[str, Any]], *, weight_version: str | None, is_paused: bool) -> dict[str, Any]:
    """Return one status of those of all workers. A replica is up where any worker can reach it."""
    whole: dict[str, Any] = {}
    for status in statuses:
        for name, value in status.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                whole[name] = whole.get(name, 0) + value
    whole["is_paused"] = is_paused
    whole["weight_version"] = weight_version
    listed = [status["replicas"] for status in statuses]
    whole["replicas"] = [
        {
            **each[0],
            "in_flight": sum(replica["in_flight"] for replica in each),
            "is_up": any(replica["is_up"] for replica in each),
        }
        for each in zip(*listed, strict=False)
    ]
    return whole


_END_SECONDS = 2.0
"""How long a process that was asked to end, and has closed its channel, may take to do so."""


class WorkerProcess:
    """A worker, in a process that has nothing of this program.

    Args:
        note: Takes what it tells.
        answer: Answers what it asks.
    """

    def __init__(
        self,
        note: "Callable[[WorkerProcess, str, tuple[Any, ...]], None]",
        answer: "Callable[[WorkerProcess, str, tuple[Any, ...]], Awaitable[Any]]",
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.channel = Channel(partial(note, self), partial(answer, self), ERRORS)
        self.open_attempts: set[Owner] = set()
        """Those with calls which the store does not have yet."""

    @property
    def pid(self) -> int | None:
        """Its process id; None before it is started."""
        return None if self._process is None else self._process.pid

    async def start(self, listening: socket.socket) -> None:
        """Start the process, which does nothing yet, with the socket that all workers answer on."""
        ours, theirs = socket.socketpair()
        with theirs:
            await self.channel.open(ours)
            descriptors = (listening.fileno(), theirs.fileno())
            # asyncio's own way to start processes works in the main thread alone on some platforms.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "lightning_proxy.worker", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )

    async def end(self, seconds: float = _END_SECONDS) -> str:
        """Close the channel, kill the process where it does not end by itself, and say how it ended."""
        await self.channel.aclose()
        process = self._process
        if process is None:
            return "nothing"
        try:
            code = await asyncio.to_thread(process.wait, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        return describe_exit(code)

    async def kill(self) -> str:
        """End it at once, and say how it ended."""
        if self._process is not None and not self.channel.closed.done():
            self._process.kill()
        return await self.end()


_START_SECONDS = 60.0
"""How long a worker may take to be ready: a backend's library may be large."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_SOUND_SECONDS = 10.0
"""Who has lived so long is replaced at once; who dies sooner again and again, after a pause that grows."""
_MAX_LOST = 20_000


class WorkerPool(ProxyServer):
    """A proxy in several processes, which accept connections from one socket. Belongs to one event loop.

    It holds what they share: the budget, on which replica an attempt is, and the changes since the start, which a new
    worker gets, too. A worker that dies takes its calls with it: their agents lose the connection, and the end of their
    attempts raises `CallsLost`, because what the model said is not known any more.

    Args:
        count: How many.
        task: What they do; the settings are those of all of them together.
        state: What they begin with.
        budget: The run's; None for no limit.
    """

    def __init__(self, count: int, task: Task, state: State, *, budget: Budget | None) -> None:
        require_sendable(state.model_list)
        self._count = count
        self._task = task
        self._state = state
        self._budget = budget
        self._changes = 0
        self._affinity = SessionAffinity()
        self._refusals = RefusalWaits(budget)
        self._spending = LocalSpending(budget, task.settings.attempt_limits)
        self._workers: list[WorkerProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._lost: OrderedDict[Owner, None] = OrderedDict()
        self._restarts = 0
        self._listening: socket.socket | None = None
        self._store_server: Any = None
        self._packed = b""

    # From start to stop

    async def start(self, host: str, port: int) -> int:
        self._listening = bind(host, port)
        self._listening.listen()  # no client is turned away while a worker is replaced
        try:
            self._packed = _packed("redact", await self._sendable_task())  # all else can be sent
            workers = await _all_of([self._start_worker() for _ in range(self._count)])
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(each), name="proxy worker") for each in workers]
        found: int = self._listening.getsockname()[1]
        return found

    async def stop(self) -> None:
        self._refusals.close()
        if self._listening is not None:
            self._listening.close()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        workers, self._workers = self._workers, []
        await asyncio.gather(*(self._stop_worker(each) for each in workers))
        server, self._store_server = self._store_server, None
        if server is not None:
            await server.stop()

    async def _stop_worker(self, worker: WorkerProcess) -> None:
        try:
            async with asyncio.timeout(2 * STOP_SECONDS + 1):
                await worker.channel.ask("stop")
        except (LightningError, TimeoutError) as exc:
            logger.warning("lightning.proxy_worker_did_not_stop pid=%s reason=%s", worker.pid, exc or "took too long")
        await worker.end(STOP_SECONDS)

    async def _sendable_task(self) -> Task:
        task = self._task
        return replace(
            task,
            store=None if task.store is None else await self._reachable(task.store),
            settings=task.settings.share_of(self._count),
            has_limits=self._spending.has_limits,
        )

    async def _reachable(self, store: LightningStore) -> LightningStore:
        """Return a store that other processes can use: a client of a server, of ours where there is no other."""
        from lightning_http import LightningStoreClient, LightningStoreServer

        if isinstance(store, LightningStoreClient):
            return store
        key = secrets.token_urlsafe(32)
        server = LightningStoreServer(store, key=key, runner_key="")
        await server.start()
        self._store_server = server
        return LightningStoreClient(server.url, key=key, run_id=store.run_id)

    # Workers

    async def _start_worker(self) -> WorkerProcess:
        assert self._listening is not None
        worker = WorkerProcess(self._take, self._answer)
        try:
            await worker.start(self._listening)
            async with asyncio.timeout(_START_SECONDS):
                known = self._changes
                await worker.channel.ask("begin", self._packed, sys.path, self._state)
                while known != self._changes:
                    known = self._changes
                    await worker.channel.ask("adopt", self._state)
                self._workers.append(worker)  # from here on it gets changes by itself
                await worker.channel.ask("listen")
        except BaseException as exc:
            if worker in self._workers:
                self._workers.remove(worker)
            how = await worker.kill()
            if isinstance(exc, ChannelClosed):
                raise ProxyError(f"a worker of the proxy ended with {how} before it began; see stderr") from exc
            raise
        return worker

    async def _keep(self, worker: WorkerProcess) -> None:
        """Replace a worker whenever it has died."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            began = loop.time()
            await asyncio.wait((worker.channel.closed,))
            how = await worker.end()
            self._bury(worker)
            logger.warning("lightning.proxy_worker_died pid=%s how=%s; another one takes its place", worker.pid, how)
            is_sound = loop.time() - began >= _SOUND_SECONDS
            while True:
                pause = 0.0 if is_sound else min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
                try:
                    worker = await self._start_worker()
                    break
                except (LightningError, OSError, TimeoutError) as exc:
                    is_sound = False
                    logger.error("lightning.proxy_worker_not_replaced reason=%s; trying again", exc)
            self._restarts += 1

    def _bury(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        self._affinity.drop_worker(worker)
        for owner in worker.open_attempts:
            self._lost[owner] = None
        while len(self._lost) > _MAX_LOST:
            self._lost.popitem(last=False)

    async def _answer(self, worker: WorkerProcess, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "start_call":
            await self._spending.start_call(*arguments)
            return None
        if name == "place":
            (request,) = arguments
            if request.list_version != self._state.list_version:
                return None
            number, was_moved = self._affinity.place(worker, request)
            if was_moved:
                for other in self._workers:
                    if other is not worker:
                        other.channel.tell("moved", request.model, request.attempt)
            return number
        if name in ("keep_response", "of_response"):
            version, *rest = arguments
            return getattr(self._affinity, name)(*rest) if version == self._state.list_version else None
        assert name in CONTROLS
        return await getattr(self, name)(*arguments)

    def _take(self, worker: WorkerProcess, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "end_call":
            attempt, tokens, usd = arguments
            self._spending.end_call(attempt, tokens=tokens, usd=usd)
            return
        assert name == "attempt"
        owner, has_calls = arguments
        if has_calls:
            worker.open_attempts.add(owner)
        else:
            worker.open_attempts.discard(owner)

    # ProxyControl

    async def pause(self, seconds: float | None = None) -> None:
        self._state.is_paused, self._state.pause_seconds = True, seconds
        await self._all("pause", seconds)

    async def resume(self) -> None:
        self._state.is_paused = False
        await self._all("resume")

    async def drain(self, timeout: float | None) -> Drained:
        drained = await self._all("drain", timeout)
        return Drained(sum(each.finished for each in drained), sum(each.aborted for each in drained))

    async def set_weight_version(self, version: str | None) -> None:
        self._state.weight_version = version
        await self._all("set_weight_version", version)

    async def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        require_sendable(model_list)
        version = self._state.list_version + 1
        if self._workers:
            await self._workers[0].channel.ask("check", model_list)
        old, new = self._state.model_list, list(model_list)
        self._affinity.change_list({number: new.index(entry) for number, entry in enumerate(old) if entry in new})
        self._state.model_list, self._state.list_version = model_list, version
        await self._all("update_model_list", model_list, version)

    async def bind(self, value: str, owner: Owner) -> None:
        self._state.bound[value] = owner
        if len(self._state.bound) > MAX_BOUND:
            del self._state.bound[next(iter(self._state.bound))]
        await self._all("bind", value, owner)

    async def flush(self, owner: Owner, end: bool) -> None:
        self._require_known(owner)
        await self._all("flush", owner, end)
        if end:
            self._spending.end_attempt(owner)
        self._require_known(owner)  # one may have died meanwhile

    async def status(self) -> dict[str, Any]:
        asked = list(self._workers)
        statuses = await self._all("status")
        return {
            **sum_of(statuses, weight_version=self._state.weight_version, is_paused=self._state.is_paused),
            "budget": None if self._budget is None else self._budget.status(),
            "workers": [each.pid for each in asked],
            "worker_restarts": self._restarts,
        }

    async def budget_beyond(self, refusals: int, seconds: float) -> dict[str, Any] | None:
        return await self._refusals.beyond(refusals, seconds)

    def _require_known(self, owner: Owner) -> None:
        dying = any(owner in each.open_attempts for each in self._workers if each.channel.closed.done())
        if dying or owner in self._lost:
            raise CallsLost(
                f"a worker of the proxy has died with calls of attempt {owner.attempt_id!r} of rollout "
                f"{owner.rollout_id!r}: what these were is not known"
            )

    async def _all(self, name: str, *arguments: Any) -> list[Any]:
        """Ask all workers at once, and return what those say that live.

        Raises:
            LightningError: What one of them raised.
        """
        self._changes += name not in _ASKED
        asked = [asyncio.ensure_future(each.channel.ask(name, *arguments)) for each in self._workers]
        if asked:
            await asyncio.wait(asked)
        return [each.result() for each in asked if not isinstance(each.exception(), ChannelClosed)]


async def _all_of(starting: Sequence[Coroutine[Any, Any, WorkerProcess]]) -> list[WorkerProcess]:
    """Wait for all, and return what they return.

    Raises:
        BaseException: What the first of them raised.
    """
    results = await asyncio.gather(*starting, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return [each for each in results if isinstance(each, WorkerProcess)]


_ASKED = frozenset({"drain", "flush", "status"})
"""What changes nothing that a worker which begins just now has to know."""
