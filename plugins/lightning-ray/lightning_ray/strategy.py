"""The algorithm here, the runners as actors of a Ray cluster, and the store between them over HTTP."""

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import ray
from lightning_http.pool import MakeProcess
from lightning_http.processes import ProcessesStrategy
from lightning_http.sending import packed
from ray.exceptions import RayError

from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import ConfigError
from lightning_core.execution.base import AlgorithmBundle, RunnerBundle
from lightning_core.store import LightningStore
from lightning_ray.actor import ActorProcess, RunnerActor


class RayStrategy(ProcessesStrategy):
    """Runs the algorithm in this process, and runners as actors of Ray.

    This process serves the store over HTTP. An actor that dies, alone or with its node, is replaced, and what it worked
    on is queued again. Those for which no node has room wait, and Ray's autoscaler sees them. When the run ends,
    whichever way, all actors end; when this process is killed, Ray ends them.

    A Ray that this process has started already is used, and left as it is.

    Args:
        n_runners: How many actors.
        num_cpus: What each of them takes of a node's processors, for Ray to count.
        num_gpus: The same of its GPUs.
        resources: The same of resources with names of your own.
        runtime_env: What Ray brings to the nodes, such as `{"working_dir": "."}`; see its documentation.
        address: The cluster: `auto`, or the address of its head node. None for the variable `RAY_ADDRESS`, or else a
            Ray of this machine for this run.
        concurrency: How many rollouts each actor runs at once.
        max_restarts: How many actors may be replaced during a run, those of lost nodes included.
        server_host: The address at which nodes reach the store. None for `127.0.0.1` with a Ray of this machine, else
            for that of this node.
        server_port: Its port; 0 lets the system choose.
        role: `both`; or `runner`: only runners, for a run whose store is served at `server_host` and `server_port`.
        graceful_timeout: How many seconds runners may take to end after the run has.

    Raises:
        ValueError: When an argument has a value that it does not take.
    """

    brings_key = True

    def __init__(
        self,
        n_runners: int = 1,
        *,
        num_cpus: float = 0.25,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        address: str | None = None,
        concurrency: int = 1,
        max_restarts: int = 1000,
        server_host: str | None = None,
        server_port: int = 0,
        role: Literal["both", "runner"] = "both",
        graceful_timeout: float = 10.0,
    ) -> None:
        super().__init__(
            role,
            server_host or "127.0.0.1",
            server_port,
            n_runners,
            graceful_timeout,
            concurrency=concurrency,
            max_restarts=max_restarts,
        )
        if self.role == "algorithm":
            raise ValueError("role is 'algorithm'; the strategy 'processes' has that, ray has both and runner")
        for name, number in (("num_cpus", num_cpus), ("num_gpus", num_gpus), *(resources or {}).items()):
            if not number >= 0:
                raise ValueError(f"{name} is {number!r}; it is 0 or more")
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        if self.address.startswith("ray://"):
            raise ValueError(
                f"address is {self.address!r}, of Ray Client, which is not supported; start the run on a node of the "
                "cluster with address='auto', or submit it with `ray job submit`"
            )
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.resources = dict(resources or {})
        self.runtime_env = dict(runtime_env or {})
        self._chooses_host = not server_host and self.role == "both"
        self._is_ours = False

    async def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """See `ExecutionStrategy.execute`. With the role `runner` the algorithm is not called, nor the store used.

        Raises:
            Exception: What the algorithm raised.
            ConfigError: When Ray cannot be reached, nor, with the role `runner`, the store.
            ExecutionError: When what runners need cannot be sent to a node, when actors cannot begin or die too often,
                or when a rollout is queued and no runner is left.
        """
        async with self._ray():
            if self._chooses_host and not (self._is_ours and self.address == "local"):
                self.server_host = ray.util.get_node_ip_address()
            await super().execute(algorithm, runner, store)

    def process_maker(self, runner: RunnerBundle, store: LightningStore) -> MakeProcess:
        """See `ProcessesStrategy.process_maker`."""
        payload = [packed("the runners' side", runner), packed("the store", store)]
        environment = {} if self._is_ours else {"runtime_env": self.runtime_env}
        actor = ray.remote(RunnerActor).options(
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            resources=self.resources,
            max_restarts=0,  # a new actor is a new worker
            scheduling_strategy="SPREAD",
            **environment,
        )
        return partial(ActorProcess, actor, payload)

    @asynccontextmanager
    async def _ray(self) -> AsyncIterator[None]:
        if ray.is_initialized():
            self._is_ours = False
            yield
            return
        self._is_ours = True
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        over = threading.Event()

        def hold() -> None:
            try:
                self._start()
                loop.call_soon_threadsafe(_set, started)
                over.wait()
            finally:
                ray.shutdown()

        # In a thread: its start takes seconds, and would install a signal handler of its own in the main one. The same
        # thread to its end: the processes of a local Ray die with the thread that has started them.
        holding = in_daemon_thread(hold, name="Ray")
        try:
            await asyncio.wait((started, holding), return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                holding.result()
            yield
        finally:
            over.set()
            await asyncio.wait((holding,))

    def _start(self) -> None:
        of_local: dict[str, Any] = {}
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no report of Ray's use to its makers
            of_local = {
                "include_dashboard": False,
                "num_cpus": max(os.cpu_count() or 1, math.ceil(self.n_runners * self.num_cpus)),
                "resources": {name: self.n_runners * number for name, number in self.resources.items()},
            }
        try:
            ray.init(address=self.address, runtime_env=self.runtime_env, logging_level="ERROR", **of_local)
        except (ConnectionError, RuntimeError, ValueError, RayError) as exc:
            raise ConfigError(f"Ray cannot be reached at address {self.address!r}: {exc}; see `ray status`") from exc


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
