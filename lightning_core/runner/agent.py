"""The runner: claims a rollout, runs the agent on it under the tracer, and records how it went."""

import asyncio
import functools
import inspect
import logging
import math
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from lightning_core.agent import Grader, LitAgent
from lightning_core.agent.base import current_runner
from lightning_core.concurrency import in_daemon_thread
from lightning_core.deprecated import deprecated
from lightning_core.emitter import emit_exception, emit_reward
from lightning_core.errors import (
    AgentTimeout,
    AttemptStopped,
    BudgetExhausted,
    Fault,
    GraderError,
    InvalidRequest,
    NeedsLegacy,
    NotFound,
    RunnerNotReady,
)
from lightning_core.former import former
from lightning_core.plugins import Hooks
from lightning_core.rewards import final_reward_in, sound_final_reward
from lightning_core.runner.base import Runner, StopEvent, T_task, worker_prefix
from lightning_core.runner.calls import BUDGET_PAUSE_SECONDS, Limits, call_agent, of_attempt, take_in_calls
from lightning_core.runner.clients import find_no_answer
from lightning_core.runner.heartbeats import Assignment, Heartbeats
from lightning_core.runner.outcome import (
    Outcome,
    check_rewards,
    describe,
    give_back,
    give_back_claimed,
    has_succeeded_by,
    is_fault,
    log_fault,
    place_of,
    record_result,
    report,
    spans_of,
)
from lightning_core.secrets import remember_environment, remember_secrets
from lightning_core.store import LightningStore
from lightning_core.tracer import DummyTracer, Trace, Tracer
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    NamedResources,
    ProxyLLM,
    Rollout,
    RolloutMode,
    Span,
    SpanCoreFields,
)

logger = logging.getLogger(__name__)

THREAD_WAIT_SECONDS = 0.2
"""How long a thread that waits for a stop signal may outlive the interest in it."""


class LitAgentRunner(Runner[T_task]):
    """Runs a `LitAgent`.

    An attempt succeeds when the agent returns, fails when it raises, and times out after the rollout's
    `timeout_seconds`. What an agent raised is recorded in a span with its trace, and in the attempt's metadata under
    `failure` (`type` and `message`).

    What is not the agent's is a fault, in the metadata under `fault`, and the store lets the rollout run again: the
    agent or its grader raised a `Fault` or what a model's client raises when the model gives no answer, the resources
    are gone, the spans could not be stored, or the runner was cancelled. Where the model may answer later, the runner
    first waits: as long as the answer asks for, and longer after each attempt. When the store says that it does not
    want the attempt any more (its rollout was cancelled, deleted, or given to another worker), the agent is stopped.

    Args:
        tracer: Records what the agent does.
        max_rollouts: How many rollouts `iter` runs; None for no limit.
        heartbeat_interval: The most seconds between two signs of life while it works, which carry how the machine does.
            There are at least three in the store's lease and in the `unresponsive_seconds` of the rollout that runs.
            0 for none: then the worker has no leases, and nothing is run again when it dies. They come from a thread,
            so that an agent that blocks the event loop keeps its lease; from the event loop where the store is not
            `thread_safe`.
        reward: A grader, a function for one, or its path; see `Grader`. None where agents score themselves.
    """

    @deprecated(
        without_effect={
            "poll_interval": "waits are notified",
            "interval_jitter": "waits are notified",
            "heartbeat_launch_mode": "a store that is thread_safe gets them from a thread",
            "heartbeat_include_gpu": "nvidia-smi shows the GPUs",
        }
    )
    def __init__(
        self,
        tracer: Tracer,
        max_rollouts: int | None = None,
        *,
        heartbeat_interval: float = 10.0,
        reward: Grader | Callable[..., Any] | str | None = None,
    ) -> None:
        if max_rollouts is not None and max_rollouts < 1:
            raise ValueError(f"max_rollouts is {max_rollouts}; it is at least 1, or None for no limit")
        if not heartbeat_interval >= 0:
            raise ValueError(f"heartbeat_interval is {heartbeat_interval}; it is 0 seconds or more")
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self.heartbeat_interval = heartbeat_interval
        self.reward = None if reward is None else Grader.of(reward)
        self._agent: LitAgent[T_task] | None = None
        self._hooks: Hooks | None = None
        self._store: LightningStore | None = None
        self._heartbeats: Heartbeats | None = None
        self._has_succeeded = False
        self.worker_id: int | None = None
        """What tells it apart from the other runners of a run; `get_worker_id` returns its id in the store."""

    mint_key: Callable[[str, str], str | None] | None = None
    """Makes the key of an attempt, by the ids of its rollout and of itself, where this process can. Else the store's
    server gives it with the claim."""

    def init(self, agent: LitAgent[T_task], *, hooks: object = None) -> None:
        self._agent = agent
        self._hooks = Hooks.of(hooks)
        self.tracer.init()

    def init_worker(self, worker_id: int, store: LightningStore) -> None:
        self._store = store
        self.worker_id = worker_id
        self._heartbeats = Heartbeats(
            f"{worker_prefix.get()}-{worker_id}",
            store,
            interval_seconds=self.heartbeat_interval,
        )
        self.tracer.init_worker(worker_id, store)
        remember_environment()

    def teardown_worker(self, worker_id: int) -> None:
        self._store = self._heartbeats = self.worker_id = None
        self.tracer.teardown_worker(worker_id)

    def teardown(self) -> None:
        self._agent = None
        self._hooks = None
        self.tracer.teardown()

    @property
    def agent(self) -> LitAgent[T_task]:
        """The agent that is run."""
        if self._agent is None:
            raise RunnerNotReady("this runner has no agent; call init, or use run_context")
        return self._agent

    @property
    def store(self) -> LightningStore:
        """Where work comes from."""
        if self._store is None:
            raise RunnerNotReady("this runner has no store; call init_worker, or use run_context")
        return self._store

    @property
    def heartbeats(self) -> Heartbeats:
        """Its signs of life, and what it works on."""
        if self._heartbeats is None:
            raise RunnerNotReady("this runner is not a worker; call init_worker, or use run_context")
        return self._heartbeats

    def get_agent(self) -> LitAgent[T_task]:
        """Return the agent that is run."""
        return self.agent

    def get_store(self) -> LightningStore:
        """Return where work comes from."""
        return self.store

    def get_worker_id(self) -> str:
        """Return the id of the runner's record in the store; `Worker-Unknown` before `init_worker`."""
        return "Worker-Unknown" if self._heartbeats is None else self._heartbeats.worker_id

    async def iter(self, *, event: StopEvent | None = None) -> None:
        done = 0
        async with self.heartbeats.beating(), _stop_of(event) as stop:
            while self.max_rollouts is None or done < self.max_rollouts:
                rollout = None if event is not None and event.is_set() else await self._claim(stop)
                if rollout is None:
                    return
                outcome = await self._run(rollout, stop=stop)
                done += 1
                if isinstance(outcome.error, BudgetExhausted):
                    # The next call would be refused, too; the leader of the run ends it meanwhile.
                    await asyncio.wait((stop,), timeout=BUDGET_PAUSE_SECONDS)

    async def step(
        self,
        input: T_task,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        resources_id = None if resources is None else (await self.store.add_resources(resources)).resources_id
        async with self.heartbeats.beating(), _stop_of(event) as stop:
            started = await self.store.start_rollout(
                input, mode=mode, resources_id=resources_id, worker_id=self.heartbeats.worker_id
            )
            async with self._cancelling(started.rollout_id, stop):
                outcome = await self._run(started, stop=stop, may_requeue=False)
        if outcome.error is not None and not outcome.was_stopped:
            raise outcome.error
        rollout = await self.store.get_rollout_by_id(started.rollout_id)
        if rollout is None:
            raise NotFound(f"rollout {started.rollout_id} was deleted while it ran")
        return rollout

    async def _claim(self, stop: "asyncio.Future[Any]") -> AttemptedRollout | None:
        """Return the next rollout; None when it is time to stop."""
        while not stop.done():
            request_id = secrets.token_hex(12)
            claim = asyncio.ensure_future(
                self.store.dequeue_rollout(self.heartbeats.worker_id, wait_seconds=None, request_id=request_id)
            )
            try:
                await asyncio.wait((claim, stop), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                try:
                    claimed = await self._cancel_claim(claim, request_id)
                except Exception as exc:  # it must not take the place of the cancellation
                    logger.warning("lightning.claim_failed worker_id=%s", self.heartbeats.worker_id, exc_info=exc)
                    claimed = None
                if claimed is not None:
                    await give_back(self.store, claimed, may_requeue=True)
                raise
            claimed = claim.result() if claim.done() else await self._cancel_claim(claim, request_id)
            if claimed is not None:
                return claimed
        return None

    async def _cancel_claim(
        self, claim: "asyncio.Task[AttemptedRollout | None]", request_id: str
    ) -> AttemptedRollout | None:
        """Cancel a claim that is under way; return what it got all the same."""
        claim.cancel()
        await asyncio.wait((claim,))
        if not claim.cancelled():
            return claim.result()
        await give_back_claimed(self.store, self.heartbeats.worker_id, request_id)
        return None

    def _pause_seconds(self, rollout: AttemptedRollout, outcome: Outcome, began: float) -> float | None:
        """Return how long to keep a rollout back whose model gave no answer; None after another fault.

        Where it never was within reach, its address is probably wrong. The attempt's limit of time stays the limit.
        """
        no_answer = find_no_answer(outcome.error)
        if no_answer is None:
            return None
        if no_answer.is_final or (no_answer.is_out_of_reach and not self._has_succeeded):
            return 0.0
        limit = rollout.config.timeout_seconds
        left = math.inf if limit is None else 0.9 * limit - (asyncio.get_running_loop().time() - began)
        return max(0.0, min(no_answer.pause_seconds(rollout.attempt.sequence_id), left))

    async def _run(
        self, rollout: AttemptedRollout, *, stop: "asyncio.Future[Any]", may_requeue: bool = True
    ) -> Outcome:
        assignment = Assignment(rollout, self.store)
        here = current_runner.set(self)
        try:
            with self.heartbeats.working_on(assignment):
                async with assignment.listening():
                    began = asyncio.get_running_loop().time()
                    outcome = await self._execute(rollout, assignment.stopped)
                    self._has_succeeded |= outcome.status == "succeeded"
                    if outcome.is_fault:
                        outcome.pause_seconds = self._pause_seconds(rollout, outcome, began) if may_requeue else None
                        log_fault(self.store, rollout.attempt, outcome)
                        if outcome.pause_seconds:  # until its model may answer
                            ends = (assignment.stopped, stop)
                            await asyncio.wait(ends, timeout=outcome.pause_seconds, return_when="FIRST_COMPLETED")
                            if assignment.stopped.done():
                                outcome.end_with(assignment.stopped.result())
                attempt = await report(self.store, rollout, outcome, may_requeue=may_requeue)
                if attempt is not None:
                    await self._tell_end(rollout.rollout_id, attempt, outcome)
        except (asyncio.CancelledError, NeedsLegacy):
            await give_back(self.store, rollout, may_requeue=may_requeue)
            raise
        finally:
            current_runner.reset(here)
        return outcome

    async def _execute(self, rollout: AttemptedRollout, stopped: "asyncio.Future[Exception]") -> Outcome:
        outcome = Outcome()
        trace: Trace | None = None
        try:
            await self._tell("lightning_rollout_start", rollout, rollout.attempt)
            resources = await self._resources(rollout)
            async with _traced(self.tracer, self.store, rollout.rollout_id, rollout.attempt.attempt_id) as trace:
                await self._tell("lightning_trace_start", rollout, rollout.attempt, tracer=self.tracer)
                limits = Limits.from_now(rollout.config.timeout_seconds, stopped)
                await self._run_agent(rollout, resources, trace, limits, outcome)
                await self._tell("lightning_trace_end", rollout, rollout.attempt, tracer=self.tracer)
            outcome.spans = await self._in_order([*trace.spans, *outcome.spans], rollout.attempt)
            if self.reward is not None and outcome.error is None:
                await take_in_calls(self.store, resources, rollout, outcome, end=False)
                await self._grade(self.reward, rollout, resources, trace, limits, outcome)
            await take_in_calls(self.store, resources, rollout, outcome, end=True)
        except NeedsLegacy:  # each attempt would meet it
            raise
        except Exception as exc:
            # Not the agent's: what it raised is in the outcome by now. If the store is gone, reporting this fails as
            # well, and the runner ends.
            outcome.end_with(exc)
            outcome.is_fault = True
            known = {span.span_id for span in outcome.spans}
            outcome.spans[:0] = [span for span in ([] if trace is None else trace.spans) if span.span_id not in known]
        return outcome

    async def _run_agent(
        self, rollout: AttemptedRollout, resources: NamedResources, trace: Trace, limits: Limits, outcome: Outcome
    ) -> None:
        try:
            method = self.agent.method_for(rollout.mode)
            outcome.result = await call_agent(
                partial(method, rollout.input, resources, rollout),
                is_async=self.agent.is_async(),
                limits=limits,
                on_abandoned=partial(self._abandon, trace),
            )
            if self.reward is None:
                is_traced = not isinstance(self.tracer, DummyTracer)
                returned = record_result(outcome.result, rollout, is_traced=is_traced)
            else:
                returned = spans_of(outcome.result, rollout)
            check_rewards([*returned, *trace.spans])
        except (AgentTimeout, AttemptStopped) as exc:
            outcome.end_with(exc)
        except Exception as exc:
            outcome.agent_at = _place_of(self.agent)
            outcome.end_with(exc)
            emit_exception(exc)
        else:
            if returned:
                await trace.flush()
                await self._add(returned, outcome)

    async def _grade(
        self,
        grader: Grader,
        rollout: AttemptedRollout,
        resources: NamedResources,
        trace: Trace,
        limits: Limits,
        outcome: Outcome,
    ) -> None:
        core_fields: SpanCoreFields | None = None
        try:
            score = await call_agent(
                grader.bind(result=outcome.result, spans=outcome.spans, rollout=rollout, resources=resources),
                is_async=grader.is_async(),
                limits=limits,
                on_abandoned=partial(self._abandon, trace),
                who="grader",
            )
            core_fields = emit_reward(score, propagate=False)
        except (AgentTimeout, AttemptStopped) as exc:
            outcome.end_with(exc)
        except Exception as exc:
            core_fields = emit_exception(exc, propagate=False)
            if is_fault(exc):
                outcome.end_with(exc)
            else:
                described = describe(exc)
                failed = GraderError(f"grader {grader.name}: {described['type']}: {described['message']}")
                failed.__cause__ = exc
                outcome.end_with(failed)
        if core_fields is not None:
            attempt = rollout.attempt
            span = Span.from_core_fields(core_fields, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id)
            await self._add([span], outcome)

    async def _add(self, spans: list[Span], outcome: Outcome) -> None:
        """Store spans besides those of the trace."""
        try:
            stored = {span.span_id: span for span in await self.store.add_many_spans(spans)}
        except InvalidRequest as exc:  # the agent made them
            outcome.end_with(exc)
        else:
            # What a repeated delivery finds there is not among the answer.
            outcome.spans += [stored.get(span.span_id, span) for span in spans]

    async def _in_order(self, spans: list[Span], attempt: Attempt) -> list[Span]:
        """Sort stored spans as the store has them; where a repeated delivery left some without a number, ask it."""
        if all(span.sequence_id > 0 for span in spans):
            return sorted(spans, key=lambda span: span.sequence_id)
        span_ids = {span.span_id for span in spans}
        stored = await self.store.query_spans(attempt.rollout_id, attempt.attempt_id)
        found = {span.span_id: span for span in stored if span.span_id in span_ids}
        # A tracer of the user's own may keep spans to itself.
        return [*found.values(), *(span for span in spans if span.span_id not in found)]

    def _abandon(self, trace: Trace) -> None:
        self.heartbeats.abandon(trace)
        logger.warning(
            "lightning.agent_abandoned rollout_id=%s attempt_id=%s; it could not be stopped, and still runs",
            trace.rollout_id,
            trace.attempt_id,
        )

    async def _resources(self, rollout: AttemptedRollout) -> NamedResources:
        if rollout.resources_id is None:
            return {}
        update = await self.store.get_resources_by_id(rollout.resources_id)
        if update is None:
            raise Fault(f"the resources {rollout.resources_id} of rollout {rollout.rollout_id} are not there")
        remember_secrets("resources", update.resources)
        if not any(isinstance(each, ProxyLLM) for each in update.resources.values()):
            return update.resources
        return of_attempt(update.resources, rollout.attempt, self._attempt_key(rollout.attempt))

    def _attempt_key(self, attempt: Attempt) -> str | None:
        if self.mint_key is not None:
            return self.mint_key(attempt.rollout_id, attempt.attempt_id)
        return self.store.attempt_key(attempt)

    async def _tell_end(self, rollout_id: str, attempt: Attempt, outcome: Outcome) -> None:
        if self._hooks is None or not self._hooks.has("lightning_rollout_end"):
            return
        rollout = await self.store.get_rollout_by_id(rollout_id)
        if rollout is not None:
            reward = None
            if has_succeeded_by(rollout, attempt):
                known = final_reward_in(attempt.metadata)
                reward = sound_final_reward(outcome.spans) if known is None else known
            await self._tell("lightning_rollout_end", rollout, attempt, reward=reward, spans=outcome.spans)

    async def _tell(self, hook: str, rollout: Rollout, attempt: Attempt, **arguments: Any) -> None:
        if self._hooks is not None and hook in self._hooks.listened:
            await self._hooks.emit(hook, agent=self.agent, runner=self, rollout=rollout, attempt=attempt, **arguments)

    @asynccontextmanager
    async def _cancelling(self, rollout_id: str, stop: "asyncio.Future[Any]") -> AsyncIterator[None]:
        """Cancel a rollout when it is time to stop; the store tells the runner that executes it."""

        async def cancel() -> None:
            await asyncio.wait((stop,))
            await self.store.update_rollout(rollout_id, status="cancelled")

        task = asyncio.create_task(cancel(), name=f"stop event of {rollout_id}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.warning("lightning.rollout_not_cancelled rollout_id=%s", rollout_id, exc_info=error)


@asynccontextmanager
async def _stop_of(event: StopEvent | None) -> AsyncIterator["asyncio.Future[Any]"]:
    """Give a future, during the block, that is done as soon as the event is set; never without an event.

    A blocking event is waited for in a daemon thread, which ends within 0.2 s after the block.
    """
    left = threading.Event()

    def watch() -> None:
        blocking: Any = event  # its wait takes a timeout, which asyncio's does not
        while not blocking.wait(THREAD_WAIT_SECONDS) and not left.is_set():
            pass

    stop: asyncio.Future[Any]
    if event is None:
        stop = asyncio.get_running_loop().create_future()
    elif inspect.iscoroutinefunction(event.wait):
        stop = asyncio.ensure_future(event.wait())
    else:
        stop = in_daemon_thread(watch, name="stop event")
    try:
        yield stop
    finally:
        left.set()
        stop.cancel()
        await asyncio.wait((stop,))


@functools.cache
def _takes_store(trace_context: Callable[..., Any]) -> bool:
    parameters = inspect.signature(trace_context).parameters.values()
    return any(each.name == "store" or each.kind is each.VAR_KEYWORD for each in parameters)


@asynccontextmanager
async def _traced(tracer: Tracer, store: LightningStore, rollout_id: str, attempt_id: str) -> AsyncIterator[Trace]:
    """Trace an attempt in a block.

    Raises:
        Exception: What the tracer, or the store, raised.
    """
    ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    if _takes_store(type(tracer).trace_context):
        ids["store"] = store
    context: AbstractAsyncContextManager[Any] = tracer.trace_context(name=rollout_id, **ids)
    async with context as given:
        if isinstance(given, Trace):
            yield given
            return
        older = former(f"{type(tracer).__name__}.trace_context yields {given!r:.60}; yield a Trace").ForeignTrace(
            tracer, rollout_id=rollout_id, attempt_id=attempt_id
        )
        with older.entered():
            yield older
    await older.deliver(store)


def _place_of(agent: LitAgent[Any]) -> str:
    """Return where the function of an agent is defined, where it is one."""
    code = getattr(inspect.unwrap(agent), "__code__", None)  # type: ignore[arg-type]  # an agent wraps its function
    return "" if code is None else place_of(code, code.co_firstlineno)
