"""The runner of the protocol: fetches tasks from a server, calls the agent under a tracer, and reports."""

import asyncio
import inspect
import logging
import numbers
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from lightning_core.adapter import TracerTraceToTriplet
from lightning_core.agent import LitAgent
from lightning_core.errors import InvalidResult
from lightning_core.rewards import sound_final_reward
from lightning_core.tracer import Tracer
from lightning_core.types import NamedResources, Span, Triplet
from lightning_legacy.client import AgentLightningClient
from lightning_legacy.names import RolloutLegacy, Task

logger = logging.getLogger(__name__)


class LegacyAgentRunner:
    """Runs an agent on the tasks of a server of agentlightning 0.1 or 0.2, or of this package's.

    The agent's methods are those of 0.1, `training_rollout(task, rollout_id, resources)`, or of today. An agent that
    raises is logged, and reported by a rollout without a reward.

    Args:
        agent: The agent.
        client: Where tasks come from.
        tracer: Records what the agent does.
        triplet_exporter: Makes triplets of spans.
        worker_id: For the agent, which may look at it.
        max_tasks: After how many tasks `iter` ends; None for never.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        client: AgentLightningClient,
        tracer: Tracer,
        triplet_exporter: TracerTraceToTriplet,
        worker_id: int | None = None,
        max_tasks: int | None = None,
    ) -> None:
        self.agent = agent
        self.client = client
        self.tracer = tracer
        self.triplet_exporter = triplet_exporter
        self.worker_id = worker_id
        self.max_tasks = max_tasks

    def run(self) -> bool:
        """Do one task; return whether there were resources for it."""
        task = self.client.poll_next_task()
        assert task is not None
        if (resources := self._resources(task)) is None:
            return False
        with self._recording(task) as rollout:
            call = self._call(task, resources, rollout, "rollout")
            self._put(*asyncio.run(self._traced(partial(asyncio.to_thread, call))), rollout)
        self.client.post_rollout(rollout)
        return True

    async def run_async(self) -> bool:
        """Do one task; return whether there were resources for it."""
        task = await self.client.poll_next_task_async()
        assert task is not None
        if (resources := await asyncio.to_thread(self._resources, task)) is None:
            return False
        with self._recording(task) as rollout:
            self._put(*await self._traced(self._call(task, resources, rollout, "rollout_async")), rollout)
        await self.client.post_rollout_async(rollout)
        return True

    def iter(self) -> int:
        """Do task after task; return how many there were."""
        done = 0
        with self._tracing():
            while self.max_tasks is None or done < self.max_tasks:
                done += self.run()
        return done

    async def iter_async(self) -> int:
        """Do task after task; return how many there were."""
        done = 0
        with self._tracing():
            while self.max_tasks is None or done < self.max_tasks:
                done += await self.run_async()
        return done

    async def _traced(self, call: Callable[[], Awaitable[Any]]) -> tuple[Any, list[Span]]:
        async with self.tracer.trace_context():
            result = await call()
        return result, self.tracer.get_last_trace()

    def _resources(self, task: Task) -> NamedResources | None:
        update = self.client.get_resources_by_id(task.resources_id or "latest")
        if update is None:
            logger.error("lightning.legacy_task_skipped rollout_id=%s: it has no resources", task.rollout_id)
        return None if update is None else update.resources

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        self.tracer.init()  # it counts: for many tasks, it does its work once
        try:
            yield
        finally:
            self.tracer.teardown()

    @contextmanager
    def _recording(self, task: Task) -> Iterator[RolloutLegacy]:
        """Let the tracer work during the block, tell the agent of both ends, and log what it raises."""
        rollout = RolloutLegacy(rollout_id=task.rollout_id, task=task)
        self.agent.set_runner(self)
        self._tell("on_rollout_start", task, self, self.tracer)
        try:
            with self._tracing():
                yield rollout
        except Exception:
            logger.exception("lightning.legacy_agent_failed rollout_id=%s", task.rollout_id)
        self._tell("on_rollout_end", task, rollout, self, self.tracer)

    def _tell(self, method: str, *arguments: object) -> None:
        """Call a method of the agent, if it has it; its errors are logged, as in 0.2."""
        try:
            getattr(self.agent, method, lambda *_: None)(*arguments)
        except Exception:
            logger.exception("lightning.legacy_%s_failed", method)

    def _call(self, task: Task, resources: NamedResources, rollout: RolloutLegacy, kind: str) -> Any:
        method = getattr(self.agent, f"{'training' if task.mode == 'train' else 'validation'}_{kind}")
        if "rollout_id" in inspect.signature(method).parameters:
            return partial(method, task.input, rollout_id=task.rollout_id, resources=resources)
        return partial(method, task.input, rollout=rollout, resources=resources)

    def _put(self, result: Any, spans: list[Span], rollout: RolloutLegacy) -> None:
        """Fill in what an agent returned, and what was traced meanwhile."""
        if isinstance(result, RolloutLegacy):
            for name in result.model_fields_set - {"rollout_id"}:
                setattr(rollout, name, getattr(result, name))
        elif isinstance(result, numbers.Real):
            rollout.final_reward = float(result)
        elif isinstance(result, list) and all(isinstance(item, Triplet) for item in result):
            rollout.triplets = result
        elif isinstance(result, list) and all(isinstance(item, ReadableSpan) for item in result):
            spans = [Span.from_opentelemetry(item, rollout.rollout_id, "", 0) for item in result]
        elif isinstance(result, list) and all(isinstance(item, dict) for item in result):
            rollout.trace = result
        elif result is not None:
            raise InvalidResult(
                f"the agent returned a {type(result).__name__}; allowed are None, a number, a RolloutLegacy, and a "
                "list of Triplets, of OpenTelemetry's spans, or of dicts that are spans as JSON"
            )
        if spans and rollout.trace is None:
            rollout.triplets = rollout.triplets or self.triplet_exporter(spans)
            rollout.trace = [span.model_dump(mode="json") for span in spans]
        if rollout.final_reward is None:
            rollout.final_reward = sound_final_reward(spans)
