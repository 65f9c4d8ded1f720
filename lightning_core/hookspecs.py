"""The moments at which plugins are called: the hooks of Lightning Core.

A plugin is an object with methods, or a module with functions, of these names. It takes only the arguments that it
needs. Each hook may be `async`, or return an awaitable, which is awaited before the next implementation is called.

Hooks are called in the event loop, and what they are told about waits for them: one that is not `async` must not
block, and one that takes long delays its rollout.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import pluggy

from lightning_core.types import Attempt, Rollout, Span

PROJECT = "lightning_core"
"""pluggy's name for us; also the entry-point group of plugins with hooks."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks an implementation of a hook. Needed only to give an order: `@hookimpl(tryfirst=True)`."""


@hookspec
def lightning_run_start(run_id: str, kept: Any) -> Awaitable[None] | None:
    """A run is about to start: neither its algorithm nor its runners do yet.

    The place to start what the run needs. When an implementation raises, the run does not start, and what it raised
    is raised to the caller that started the run.

    Args:
        run_id: The run.
        kept: `RolloutCounts` of the rollouts that the store has from before: of a run that is taken up again. No hook
            tells of those
            that had ended; the unfinished ones go on.
    """


@hookspec
def lightning_rollout_start(agent: Any, runner: Any, rollout: Rollout, attempt: Attempt) -> Awaitable[None] | None:
    """A runner took a rollout, and is about to trace an attempt of it.

    Called in the process of the runner, once for each attempt, outside of its trace: spans that are made here do not
    belong to it. The attempt's time has begun with the claim.

    Args:
        agent: The `LitAgent` that the runner runs.
        runner: The `Runner`.
        rollout: The rollout, as it was claimed.
        attempt: The attempt that begins.
    """


@hookspec
def lightning_trace_start(
    agent: Any, runner: Any, tracer: Any, rollout: Rollout, attempt: Attempt
) -> Awaitable[None] | None:
    """The trace of an attempt is open, and the agent is about to run.

    What is emitted here belongs to the attempt, and comes before what the agent emits.

    Args:
        agent: The `LitAgent` that the runner runs.
        runner: The `Runner`.
        tracer: What records the trace.
        rollout: The rollout, as it was claimed.
        attempt: The attempt.
    """


@hookspec
def lightning_trace_end(
    agent: Any, runner: Any, tracer: Any, rollout: Rollout, attempt: Attempt
) -> Awaitable[None] | None:
    """The agent has ended, and the trace of its attempt is still open.

    What is emitted here belongs to the attempt, and comes after what the agent emitted. Called also when the agent
    failed or ran out of its time; not when its runner was cancelled.

    Args:
        agent: The `LitAgent` that the runner runs.
        runner: The `Runner`.
        tracer: What records the trace.
        rollout: The rollout, as it was claimed.
        attempt: The attempt, as it was claimed.
    """


@hookspec
def lightning_rollout_end(
    agent: Any,
    runner: Any,
    rollout: Rollout,
    attempt: Attempt,
    reward: float | None,
    spans: Sequence[Span],
) -> Awaitable[None] | None:
    """An attempt ended, and its outcome is stored.

    Called in the process of the runner, once for each attempt that a runner saw the end of. Attempts that the store
    ended by itself (a lost worker) are not told. One that was given up before its end (its rollout was cancelled,
    queued again, or begun anew) is told, and has no reward: its result counts for nothing.

    Args:
        agent: The `LitAgent` that the runner runs.
        runner: The `Runner`.
        rollout: The rollout, as it is after the attempt.
        attempt: The attempt, in its final status.
        reward: The primary reward of the attempt; None when it gave none, or is not what the rollout succeeded by.
        spans: What the attempt recorded, in order. Shared by all plugins: copy before changing.
    """


@hookspec
def lightning_step_end(step: int, metrics: Mapping[str, float | None]) -> Awaitable[None] | None:
    """The algorithm ended a step, and says how it stands.

    Args:
        step: Counts the algorithm's steps, from 1.
        metrics: What the algorithm measured, by name; None for a metric that has no value any more.
    """


@hookspec
def lightning_run_end(run_id: str, status: str) -> Awaitable[None] | None:
    """A run ended, whichever way.

    The place to stop what `lightning_run_start` started. Called once for each start, also when the run could not
    start; a plugin whose own start was not reached, or did not return, is left out.

    Args:
        run_id: The run.
        status: `succeeded`, `failed`, `interrupted` or `budget`.
    """


@hookspec
def lightning_run_recorded(folder: Any, store: Any) -> Awaitable[None] | None:
    """A run with a folder ended, and all that is known of it is written down. Not called after Ctrl-C.

    Args:
        folder: The `RunFolder`, with its manifest, metrics and best resources.
        store: The `LightningStore` of the run, which is still open.
    """
