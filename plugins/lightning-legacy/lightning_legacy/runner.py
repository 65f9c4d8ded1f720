"""The runner of the protocol: fetches tasks from a server, calls the agent under a tracer, and reports."""

import inspect
import json
import logging
import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from lightning_core.adapter import TracerTraceToTriplet
from lightning_core.agent import LitAgent
from lightning_core.compat.names import RolloutLegacy, Task
from lightning_core.errors import InvalidResult
from lightning_core.rewards import sound_final_reward
from lightning_core.tracer import Tracer
from lightning_core.types import ResourcesUpdate, Span, Triplet
from lightning_legacy.client import AgentLightningClient

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
        worker_id: Tells runners apart in logs.
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
        resources = (
            self.client.get_resources_by_id(task.resources_id)
            if task.resources_id
            else self.client.get_latest_resources()
        )
        if not self._has_resources(task, resources):
            return False
        rollout = RolloutLegacy(rollout_id=task.rollout_id, task=task)
        self._tell("on_rollout_start", task, self, self.tracer)
        try:
            with self._tracing():
                result = self.tracer.trace_run(self._call(task, resources, rollout, is_async=False))
                rollout = self._read_result(result, rollout)
        except Exception:
            logger.exception("lightning.legacy_agent_failed rollout_id=%s", task.rollout_id)
        self._tell("on_rollout_end", task, rollout, self, self.tracer)
        self.client.post_rollout(rollout)
        return True

    async def run_async(self) -> bool:
        """Do one task; return whether there were resources for it."""
        task = await self.client.poll_next_task_async()
        assert task is not None
        resources = await (
            self.client.get_resources_by_id_async(task.resources_id)
            if task.resources_id
            else self.client.get_latest_resources_async()
        )
        if not self._has_resources(task, resources):
            return False
        rollout = RolloutLegacy(rollout_id=task.rollout_id, task=task)
        self._tell("on_rollout_start", task, self, self.tracer)
        try:
            with self._tracing():
                result = await self.tracer.trace_run_async(self._call(task, resources, rollout, is_async=True))
                rollout = self._read_result(result, rollout)
        except Exception:
            logger.exception("lightning.legacy_agent_failed rollout_id=%s", task.rollout_id)
        self._tell("on_rollout_end", task, rollout, self, self.tracer)
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

    def _tell(self, method: str, *arguments: object) -> None:
        """Call a method of the agent, if it has it; its errors are logged, as in 0.2."""
        try:
            getattr(self.agent, method, lambda *_: None)(*arguments)
        except Exception:
            logger.exception("lightning.legacy_%s_failed", method)

    def _has_resources(self, task: Task, resources: ResourcesUpdate | None) -> bool:
        if resources is None:
            logger.error("lightning.legacy_task_skipped rollout_id=%s: it has no resources", task.rollout_id)
        return resources is not None

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        self.agent.set_runner(self)
        self.tracer.init()
        try:
            yield
        finally:
            self.tracer.teardown()

    def _call(self, task: Task, resources: ResourcesUpdate | None, rollout: RolloutLegacy, *, is_async: bool) -> Any:
        kind = "training" if task.mode == "train" else "validation"
        method = getattr(self.agent, f"{kind}_rollout_async" if is_async else f"{kind}_rollout")
        named: dict[str, Any] = {} if resources is None else {"resources": resources.resources}
        if "rollout_id" in inspect.signature(method).parameters:
            return partial(method, task.input, rollout_id=task.rollout_id, **named)
        return partial(method, task.input, rollout=rollout, **named)

    def _read_result(self, result: Any, rollout: RolloutLegacy) -> RolloutLegacy:
        """Put together what an agent returned, and what was traced meanwhile."""
        if isinstance(result, RolloutLegacy):
            rollout, result = result.model_copy(update={"rollout_id": rollout.rollout_id}), None
        told: dict[str, Any] = {}
        spans = self.tracer.get_last_trace()
        if isinstance(result, numbers.Real):
            told["final_reward"] = float(result)
        elif isinstance(result, Sequence) and all(isinstance(item, Triplet) for item in result):
            told["triplets"] = list(result)
        elif isinstance(result, Sequence) and all(isinstance(item, ReadableSpan | Span) for item in result):
            spans = [
                item if isinstance(item, Span) else Span.from_opentelemetry(item, rollout.rollout_id, "", 0)
                for item in result
            ]
        elif isinstance(result, Sequence) and all(isinstance(item, Mapping) for item in result):
            told["trace"] = [dict(item) for item in result]
        elif result is not None:
            raise InvalidResult(
                f"the agent returned a {type(result).__name__}; allowed are None, a number, a RolloutLegacy, and a "
                "list of Triplets, spans, or dicts of spans as JSON"
            )
        if spans and "trace" not in told:
            told["trace"] = [json.loads(span.model_dump_json()) for span in spans]
            told.setdefault("triplets", self.triplet_exporter(spans))
        reward = sound_final_reward(spans)
        if rollout.final_reward is None and reward is not None:
            told.setdefault("final_reward", reward)
        return rollout.model_copy(update=told)
