"""The runner: claims a rollout, runs the agent on it under the tracer, and records how it went."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning_core.agent import LitAgent
from lightning_core.emitter import emit_exception, find_final_reward
from lightning_core.errors import InvalidTransition, LightningError
from lightning_core.plugins import Hooks
from lightning_core.runner.base import Runner
from lightning_core.runner.calls import AgentTimeout, call_agent
from lightning_core.runner.results import check_rewards, record_result
from lightning_core.store import UNSET, LightningStore
from lightning_core.tracer import Trace, Tracer
from lightning_core.types import Attempt, AttemptedRollout, AttemptStatus, NamedResources, Rollout, RolloutMode, Span

logger = logging.getLogger(__name__)

_LAST_HEARTBEAT_SECONDS = 1.0
"""How long the heartbeat that ends a runner, and tells of abandoned agents, may take: somebody waits for that end."""


@dataclass(slots=True)
class _Outcome:
    """How an attempt went."""

    status: AttemptStatus = "succeeded"
    error: Exception | None = None
    spans: list[Span] = field(default_factory=list)
    """All that it recorded, in order."""


class LitAgentRunner(Runner):
    """Runs a `LitAgent`.

    An attempt succeeds when the agent returns, fails when it raises, and times out after the rollout's
    `timeout_seconds`. What an agent raised is recorded in a span with its trace, and in the attempt's metadata under
    `failure` (`type` and `message`).

    Args:
        tracer: Records what the agent does.
        max_rollouts: How many rollouts `iter` runs; None for no limit.
        heartbeat_interval: Seconds between two signs of life while `iter` runs.
    """

    def __init__(self, tracer: Tracer, max_rollouts: int | None = None, *, heartbeat_interval: float = 10.0) -> None:
        if max_rollouts is not None and max_rollouts < 1:
            raise ValueError(f"max_rollouts is {max_rollouts}; it is at least 1, or None for no limit")
        if heartbeat_interval <= 0:
            raise ValueError(f"heartbeat_interval is {heartbeat_interval}; it is more than 0 seconds")
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self.heartbeat_interval = heartbeat_interval
        self._agent: LitAgent[Any] | None = None
        self._hooks: Hooks | None = None
        self._store: LightningStore | None = None
        self._worker_id = "worker-0"
        self._abandoned: list[Trace] = []

    def init(self, agent: LitAgent[Any], *, hooks: Hooks | None = None) -> None:
        self._agent = agent
        self._hooks = Hooks.of(hooks)
        self.tracer.init()

    def init_worker(self, worker_id: int, store: LightningStore) -> None:
        self._worker_id = f"worker-{worker_id}"
        self._store = store
        self.tracer.init_worker(worker_id, store)

    def teardown_worker(self, worker_id: int) -> None:
        self._store = None
        self.tracer.teardown_worker(worker_id)

    def teardown(self) -> None:
        self._agent = None
        self._hooks = None
        self.tracer.teardown()

    @property
    def agent(self) -> LitAgent[Any]:
        """The agent that is run."""
        if self._agent is None:
            raise LightningError("this runner has no agent; call init, or use run_context")
        return self._agent

    @property
    def store(self) -> LightningStore:
        """Where work comes from."""
        if self._store is None:
            raise LightningError("this runner has no store; call init_worker, or use run_context")
        return self._store

    async def iter(self) -> None:
        done = 0
        async with self._heartbeats():
            while self.max_rollouts is None or done < self.max_rollouts:
                rollout = await self.store.dequeue_rollout(self._worker_id, wait_seconds=None)
                if rollout is not None:
                    await self._run(rollout)
                    done += 1

    async def step(
        self, input: Any, *, resources: NamedResources | None = None, mode: RolloutMode | None = None
    ) -> Rollout:
        resources_id = None if resources is None else (await self.store.add_resources(resources)).resources_id
        started = await self.store.start_rollout(input, mode=mode, resources_id=resources_id, worker_id=self._worker_id)
        outcome = await self._run(started)
        if outcome.error is not None:
            raise outcome.error
        rollout = await self.store.get_rollout_by_id(started.rollout_id)
        assert rollout is not None
        return rollout

    async def _run(self, rollout: AttemptedRollout) -> _Outcome:
        outcome = _Outcome()
        await self._tell("lightning_rollout_start", rollout, rollout.attempt)
        try:
            async with self.tracer.trace_context(
                rollout.rollout_id,
                store=self.store,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
            ) as trace:
                await self._tell("lightning_trace_start", rollout, rollout.attempt, tracer=self.tracer)
                await self._run_agent(rollout, trace, outcome)
                await self._tell("lightning_trace_end", rollout, rollout.attempt, tracer=self.tracer)
            outcome.spans = sorted([*outcome.spans, *trace.spans], key=lambda span: span.sequence_id)
        except Exception as exc:
            # The spans could not be stored, so nobody can learn from this attempt. Recording it may fail as well;
            # then the runner has lost its store, and ends.
            logger.error("lightning.attempt_lost rollout_id=%s", rollout.rollout_id, exc_info=exc)
            outcome = _Outcome("failed", exc)
        await self._record(rollout, outcome)
        return outcome

    async def _run_agent(self, rollout: AttemptedRollout, trace: Trace, outcome: _Outcome) -> None:
        try:
            method = self.agent.method_for(rollout.mode)
            result = await call_agent(
                partial(method, rollout.input, await self._resources(rollout), rollout),
                is_async=self.agent.is_async(),
                timeout_seconds=rollout.config.timeout_seconds,
                on_abandoned=partial(self._abandon, trace),
            )
            returned = record_result(result, rollout)
            check_rewards([*returned, *trace.spans])
            if returned:
                outcome.spans = list(await self.store.add_many_spans(returned))
        except AgentTimeout as exc:
            outcome.status, outcome.error = "timeout", exc
        except Exception as exc:
            outcome.status, outcome.error = "failed", exc
            emit_exception(exc)

    def _abandon(self, trace: Trace) -> None:
        self._abandoned.append(trace)
        logger.warning(
            "lightning.agent_abandoned rollout_id=%s attempt_id=%s; it could not be stopped, and still runs",
            trace.rollout_id,
            trace.attempt_id,
        )

    async def _resources(self, rollout: Rollout) -> NamedResources:
        if rollout.resources_id is None:
            return {}
        update = await self.store.get_resources_by_id(rollout.resources_id)
        if update is None:
            raise LightningError(f"rollout {rollout.rollout_id} wants resources {rollout.resources_id}, which are gone")
        return update.resources

    async def _record(self, rollout: AttemptedRollout, outcome: _Outcome) -> None:
        failure = {} if outcome.error is None else {"failure": _describe(outcome.error)}
        try:
            attempt = await self.store.update_attempt(
                rollout.rollout_id,
                rollout.attempt.attempt_id,
                status=outcome.status,
                metadata={**(rollout.attempt.metadata or {}), **failure} if failure else UNSET,
            )
        except InvalidTransition as exc:
            # The store gave it up in the meantime; another attempt may be under way.
            logger.warning("lightning.late_result rollout_id=%s: %s", rollout.rollout_id, exc)
            return
        await self._tell_end(rollout.rollout_id, attempt, outcome)

    async def _tell_end(self, rollout_id: str, attempt: Attempt, outcome: _Outcome) -> None:
        if self._hooks is None or not self._hooks.has("lightning_rollout_end"):
            return
        rollout = await self.store.get_rollout_by_id(rollout_id)
        if rollout is not None:
            reward = find_final_reward(outcome.spans) if outcome.status == "succeeded" else None
            await self._tell("lightning_rollout_end", rollout, attempt, reward=reward, spans=outcome.spans)

    async def _tell(self, hook: str, rollout: Rollout, attempt: Attempt, **arguments: Any) -> None:
        if self._hooks is not None and self._hooks.has(hook):
            await self._hooks.emit(hook, agent=self.agent, runner=self, rollout=rollout, attempt=attempt, **arguments)

    @asynccontextmanager
    async def _heartbeats(self) -> AsyncIterator[None]:
        async def beat() -> None:
            while True:
                await self._beat(self.heartbeat_interval)
                await asyncio.sleep(self.heartbeat_interval)

        task = asyncio.create_task(beat(), name=f"heartbeat of {self._worker_id}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if self._abandoned:
                await self._beat(_LAST_HEARTBEAT_SECONDS)

    async def _beat(self, timeout_seconds: float) -> None:
        stats = {
            "abandoned_agents": len(self._abandoned),
            "dropped_spans": sum(trace.dropped for trace in self._abandoned),
        }
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.store.update_worker(self._worker_id, stats)
        except Exception as exc:
            # Work goes on: if the store is gone for good, the next claim or report says so.
            logger.warning("lightning.heartbeat_failed worker_id=%s", self._worker_id, exc_info=exc)


def _describe(error: Exception) -> dict[str, str]:
    shown = traceback.TracebackException(type(error), error, None)  # str(error) may fail in its turn
    return {"type": type(error).__name__, "message": str(shown) or type(error).__name__}
