"""Runners in a process that Ray starts on some node: the actor there, and what stands for it in the driver."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from lightning_http.child import Report, report_error, report_failure, run_here, worker_ids
from lightning_http.pool import KEY_VARIABLES, PooledProcess
from lightning_http.sending import unpacked
from ray.exceptions import RayError, RuntimeEnvSetupError

from lightning_core.execution.base import RunnerBundle
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
"""How long the first runner may wait for a node before that is said."""


class RunnerActor:
    """Several runners in a process of Ray's, in one event loop.

    Args:
        token: Is part of the ids of the workers here.
        numbers: Of the workers.
    """

    def __init__(self, token: str, numbers: Sequence[int]) -> None:
        self._token = token
        self._numbers = numbers
        self._stop = asyncio.Event()
        self._runner: RunnerBundle
        self._store: LightningStore

    async def begin(self, payload: Sequence[bytes], folders: Sequence[str]) -> tuple[str, Report]:
        """Import what runs here.

        Args:
            payload: The packed runners' side, and the packed store.
            folders: Where the program that leads the run imports from. Those which are here, too, are used after those
                of this process.

        Returns:
            The id of this node, and whether it went well.
        """
        node: str = ray.get_runtime_context().get_node_id()
        for name in KEY_VARIABLES:  # a local Ray passes them on; agents have no use for them
            os.environ.pop(name, None)
        sys.path += [each for each in folders if each not in sys.path and os.path.isdir(each)]  # noqa: ASYNC240
        try:
            self._runner, self._store = map(unpacked, payload)
        except Exception as exc:
            return node, report_error("broken", exc)
        return node, Report("ready")

    async def run(self) -> Report:
        """Run the runners until they have ended, the run has, or `stop` is called, and say why."""
        ending: list[Report] = []
        try:
            try:
                await run_here(
                    self._runner,
                    self._store,
                    self._numbers,
                    self._stop,
                    prefix=worker_ids(self._token),
                    on_over=lambda: ending.append(Report("over")),
                )
            finally:
                await self._store.aclose()
        except Exception as exc:
            return report_failure(exc)
        return ending[0] if ending else Report("ready")

    async def stop(self) -> None:
        """Give back what is worked on, and let `run` return."""
        self._stop.set()


class ActorProcess(PooledProcess):
    """An actor with runners.

    Args:
        actor: The class of it, as Ray has it, with its options.
        payload: See `RunnerActor.begin`.
        numbers: Of its workers.
    """

    exit_code: int | None = None

    def __init__(self, actor: Any, payload: Sequence[bytes], numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self._actor_class = actor
        self._payload = payload
        self._node = ""
        self._error = ""

    async def start(self) -> None:
        """Ask Ray for it. It begins when a node has room."""
        self._actor = self._actor_class.remote(self.token, self.numbers)
        self._watching = asyncio.create_task(self._watch(), name=f"actor of {self.name}")

    def stop(self) -> None:
        """Ask it to give back what it works on, and to end."""
        if self.has_begun:
            self._actor.stop.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """Let Ray end it."""
        if not self.ended.done():
            ray.kill(self._actor)

    def describe_end(self) -> str:
        """Say how it ended, in one line."""
        error = self.report.error if self.report is not None and self.report.error else self._error
        where = f" on node {self._node}" if self._node else ""
        return f"{self.name} (a Ray actor{where}) ended: {error or 'as it should'}"

    def close(self) -> None:
        """Let Ray end it where it still runs."""
        self.kill()
        self._watching.cancel()

    async def _watch(self) -> None:
        try:
            begun = asyncio.ensure_future(self._begin())
            if self.numbers[0] == 0 and not (await asyncio.wait({begun}, timeout=WAIT_SECONDS))[0]:
                logger.warning(
                    "lightning_ray.no_runner_yet: no node has room, or they are slow to start; see ray status"
                )
            self._node, self.report = await begun
            if self.report.kind == "ready":
                self.report = await self._actor.run.remote()
            self.exit_code = 0 if self.report.kind in ("ready", "over") else 1
        except RuntimeEnvSetupError as exc:
            self.report, self.exit_code = report_error("broken", exc), 1
        except RayError as exc:
            self._error = " ".join(str(exc).split())
        finally:
            with suppress(RayError):
                ray.kill(self._actor)
            self.ended.set_result(None)

    async def _begin(self) -> tuple[str, Report]:
        node, report = await self._actor.begin.remote(self._payload, sys.path)
        return node, report
