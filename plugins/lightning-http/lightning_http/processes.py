"""The algorithm here, the runners in processes of their own, and the store between them over HTTP."""

import asyncio
import logging
import multiprocessing
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

import lightning_http as http
from lightning_core.deprecated import deprecated
from lightning_core.errors import ConfigError, ExecutionError, RunEnded, StoreError
from lightning_core.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from lightning_core.execution.local import end_tasks, raise_failure, signal_run_end, wait_for_algorithm
from lightning_core.model_proxy import KEY_VARIABLE
from lightning_core.store import LightningStore
from lightning_http.messages import RUNNER_KEY_VARIABLE
from lightning_http.observed import ObservedStore, following, observer_of
from lightning_http.pool import MakeProcess, RunnerPool, StartMethod, join_run, process_context, process_maker, release

logger = logging.getLogger(__name__)

_AtLeastOne = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(ge=0)]


def _checked(name: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as exc:
        raise ValueError(f"{name} is {value!r}: {exc.errors()[0]['msg']}") from exc


def _setting(name: str, given: Any, variable: str, default: Any, kind: Any) -> Any:
    """Return what was given, else the variable where it is set and not empty, else the default."""
    text = os.environ.get(variable)
    if given is None and text:
        return _checked(f"the variable {variable}", text, kind)
    return _checked(name, default if given is None else given, kind)


STORE_PORT = 4747
"""Where `agl serve store` serves, unless it is told otherwise."""

Role = Literal["algorithm", "runner", "both"]
INTERRUPTED_SECONDS = 1.0
"""How long runners may take to end when the run has failed or was interrupted; that should not take 2 s."""

LOOK_SECONDS = 1.0
"""How long to look who works, once the algorithm has ended."""

BACK_SECONDS = 2.0
"""How long after its last report a worker elsewhere may come back for more work; one that does not has left."""

BACK_LOOK_SECONDS = 0.2
"""How often to look who has left, once the run has ended."""

RETRY_SECONDS = 600.0
"""How long a runner process repeats a request: it ends anyway when the process that serves the store dies."""


class ProcessesStrategy(ExecutionStrategy):
    """Runs the algorithm in this process, and runners in processes of their own.

    The store is served over HTTP by this process. A runner process that dies is replaced, and what it worked on is
    queued again. When the run ends, whichever way, all runners end, those of other machines too; when this process is
    killed, its runners end by themselves.

    The agent, the tracer, the grader and the hooks of runners reach a process by their import path, or pickled.

    Args:
        role: What this process does: `both`; only the `algorithm`, whose store runners elsewhere come to; or only
            `runner`s, for a store that is served at `server_host` and `server_port`. None for `AGL_CURRENT_ROLE`, or
            else `both`.
        server_host: The address of the store. One that other machines can reach needs a key, in the variable
            `AGL_KEY`; on any other, the role `algorithm` wants no key without that. None for `AGL_SERVER_HOST`, or
            else `127.0.0.1`.
        server_port: Its port; 0 lets the system choose, or, for only runners, is 4747. None for `AGL_SERVER_PORT`, or
            else 0.
        n_runners: How many processes.
        graceful_timeout: How many seconds runners may take to end after the run has; then they are killed.
        managed_store: Whether to serve the store. False where runners can reach it by themselves, as they can the
            client of a store's server; it has to be picklable then, and the role `runner` goes to that server. None for
            `AGL_MANAGED_STORE`, or else as the store is.
        concurrency: How many rollouts each process runs at once.
        start_method: `forkserver`, which imports what runners need once for all processes, or `spawn`. None for
            `forkserver` where the system has it.
        max_restarts: How many runner processes may be replaced during a run.

    Raises:
        ValueError: When an argument, or a variable, has a value that it does not take.
    """

    brings_key = False
    """Whether runners on other machines get the store's key from this process."""

    @deprecated(
        without_effect={
            "allowed_exit_codes": "a runner process that ends with another status is replaced",
            "terminate_timeout": "runners that have not ended after graceful_timeout= are killed",
            "main_process": "runners have processes of their own; for a debugger take the strategy 'local'",
        },
    )
    def __init__(
        self,
        role: Role | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        *,
        managed_store: bool | None = None,
        concurrency: int = 1,
        start_method: StartMethod | None = None,
        max_restarts: int = 10,
    ) -> None:
        self.role: Role = _setting("role", role, "AGL_CURRENT_ROLE", "both", Role)
        self.server_host: str = _setting("server_host", server_host, "AGL_SERVER_HOST", "127.0.0.1", str)
        port = Annotated[int, Field(ge=0, le=65535)]
        self.server_port: int = _setting("server_port", server_port, "AGL_SERVER_PORT", 0, port)
        managed = _setting("managed_store", managed_store, "AGL_MANAGED_STORE", None, bool | None)
        self.managed_store: bool | None = managed
        self.n_runners: int = _checked("n_runners", n_runners, _AtLeastOne)
        self.concurrency: int = _checked("concurrency", concurrency, _AtLeastOne)
        self.max_restarts: int = _checked("max_restarts", max_restarts, Annotated[int, Field(ge=0)])
        self.graceful_timeout: float = _checked("graceful_timeout", graceful_timeout, _Seconds)
        # A fork would copy locks that threads of this process hold.
        self.start_method: StartMethod | None = _checked("start_method", start_method, StartMethod | None)
        if self.role == "runner" and self.server_port == 0:
            self.server_port = STORE_PORT

    def serves(self, store: LightningStore) -> bool:
        """Whether this process serves a store to its runners, who then get the keys of attempts with their claims."""
        is_reachable = isinstance(store, http.LightningStoreClient | http.LightningStoreServer)
        return self.managed_store is True or (self.managed_store is None and not is_reachable)

    def process_maker(self, runner: RunnerBundle, store: LightningStore) -> MakeProcess:
        """Return what makes processes with runners.

        Args:
            runner: The runners' side.
            store: As runners reach it.

        Raises:
            ExecutionError: When one of them cannot be sent to a process.
        """
        return process_maker(runner, store, context=process_context(self.start_method))

    async def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """See `ExecutionStrategy.execute`. With the role `runner` the algorithm is not called, nor the store used.

        Raises:
            Exception: What the algorithm raised.
            ConfigError: When the store cannot be served, or with the role `runner` cannot be reached, or, where
                `managed_store` is False, has only a run that has ended.
            ExecutionError: When what runners need cannot be sent to a process, when their processes cannot begin or
                die too often, or when a rollout is queued and no runner is left.
        """
        _refuse_unguarded_program()
        if self.role == "runner":
            host = f"[{self.server_host}]" if ":" in self.server_host else self.server_host
            url = f"http://{host}:{self.server_port}"
            if self.managed_store is False and isinstance(store, http.LightningStoreClient):
                url = store.url
            try:
                await join_run(
                    runner,
                    url,
                    self.process_maker,
                    n_runners=self.n_runners,
                    concurrency=self.concurrency,
                    max_restarts=self.max_restarts,
                    graceful_seconds=min(self.graceful_timeout, INTERRUPTED_SECONDS),
                )
            except RunEnded as exc:
                if self.managed_store is False:  # the store outlives its runs: this is one that ended before
                    raise ConfigError(f"{exc} for this runner; start the algorithm first, then its runners") from exc
                logger.info("lightning.nothing_to_join: %s", exc)
            return
        await store.begin_run()
        async with self._reachable(store, runner) as (known, for_runners):
            runners = RunnerPool(
                None if self.role == "algorithm" else self.process_maker(runner, for_runners),
                n_runners=self.n_runners,
                concurrency=self.concurrency,
                max_restarts=self.max_restarts,
                release=partial(release, known),
            )
            leader = asyncio.create_task(algorithm(store), name="algorithm")
            working = asyncio.create_task(runners.run(), name="runner processes")
            try:
                await self._watch(leader, working, known)
            except BaseException as exc:
                await self._end(leader, working, known, runners, raised=exc)
                raise
            await self._end(leader, working, known, runners)

    async def _watch(self, leader: "asyncio.Task[None]", working: "asyncio.Task[None]", store: LightningStore) -> None:
        """Return when the algorithm has ended."""
        await asyncio.wait({leader, working}, return_when=asyncio.FIRST_COMPLETED)
        if not leader.done():
            raise_failure(working)
            if self.role == "algorithm":
                await asyncio.wait({leader})
            await wait_for_algorithm(leader, store, self.n_runners * self.concurrency)
        raise_failure(leader)

    async def _end(
        self,
        leader: "asyncio.Task[None]",
        working: "asyncio.Task[None]",
        store: LightningStore,
        runners: RunnerPool,
        *,
        raised: BaseException | None = None,
    ) -> None:
        seconds = self.graceful_timeout if raised is None else min(self.graceful_timeout, INTERRUPTED_SECONDS)
        try:
            telling = asyncio.create_task(signal_run_end(store, raised=raised), name="word of the end")
            leading = asyncio.create_task(end_tasks([leader], raised=raised), name="end of the algorithm")
            if raised is None:
                await telling
            # Where they have heard of the end, those that wait for work leave by themselves.
            await runners.stop(seconds, busy=await _busy_workers(store) if raised is None else None)
            await leading
            await telling
        finally:
            runners.close()
            await end_tasks([working], raised=raised)
        if self.serves(store):
            await _while_others_come_back(store, runners.tokens, seconds)

    @asynccontextmanager
    async def _reachable(
        self, store: LightningStore, runner: RunnerBundle
    ) -> AsyncIterator[tuple[LightningStore, LightningStore]]:
        """Give, during the block, the store whose changes an observer sees, and the one that runners reach."""
        observer = observer_of(runner)
        if not self.serves(store):
            async with following(store, observer):
                if isinstance(store, http.LightningStoreServer):
                    async with store.client_of_runners() as client:
                        yield store, client
                else:
                    yield store, store
            return
        from lightning_http.web_pages import is_loopback  # late: runner processes have no use for a server

        given, runner_key = os.environ.get(KEY_VARIABLE), os.environ.get(RUNNER_KEY_VARIABLE)
        if not given and not self.brings_key and not is_loopback(self.server_host):
            raise ConfigError(
                f"server_host {self.server_host} can be reached from other machines, so the store needs a key: set "
                f"{KEY_VARIABLE} here, and {RUNNER_KEY_VARIABLE} for the key of runners, or serve on 127.0.0.1"
            )
        # Of the proxy's key, where there is one: what comes with a claim has to open model calls.
        key = given or getattr(runner, "key", None)
        if not (key or runner_key) and self.role == "algorithm":
            key = runner_key = ""  # runners that are started elsewhere on this machine could not know a key made here
        else:
            key, runner_key = key or secrets.token_urlsafe(32), runner_key or secrets.token_urlsafe(32)
        observed = store if observer is None else ObservedStore(store, observer)
        server = http.LightningStoreServer(
            observed,
            self.server_host,
            self.server_port,
            key=key,
            runner_key=runner_key,
            tracker=getattr(store, "tracker", None),
        )
        async with server:
            logger.info("lightning.store_served run_id=%s url=%s", store.run_id, server.url)
            client = http.LightningStoreClient(
                server.url, key=runner_key, run_id=store.run_id, retry_seconds=RETRY_SECONDS
            )
            async with aclosing(client):
                yield observed, client


async def _busy_workers(store: LightningStore) -> set[str] | None:
    """Return the ids of workers that execute something; None where the store does not say."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return {each.worker_id for each in await store.query_workers(status_in=["busy"])}
    except (StoreError, TimeoutError) as exc:  # such as closed, by the algorithm
        logger.info("lightning.workers_not_known run_id=%s: %s", store.run_id, exc)
        return None


async def _while_others_come_back(store: LightningStore, tokens: Iterable[str], seconds: float) -> None:
    """Return when workers elsewhere have had the time to hear that the run has ended: they come back for more work.

    Args:
        store: Where they look for it.
        tokens: Parts of the ids of those that are not elsewhere.
        seconds: How long to wait at most.
    """
    try:
        async with asyncio.timeout(seconds):
            while True:
                since = time.time() - BACK_SECONDS
                workers = await store.query_workers()
                others = [each for each in workers if not any(token in each.worker_id for token in tokens)]
                if not any(each.status == "busy" or (each.last_idle_time or 0.0) > since for each in others):
                    return
                await asyncio.sleep(BACK_LOOK_SECONDS)
    except (StoreError, TimeoutError) as exc:  # such as closed, by the algorithm, perhaps
        logger.info("lightning.workers_not_known run_id=%s: %r", store.run_id, exc)


def _refuse_unguarded_program() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ExecutionError(
            "a runner process has begun to run the program that started it; "
            "put what starts a run below `if __name__ == '__main__':`"
        )
