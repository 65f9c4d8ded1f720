"""Listeners in the form that agentlightning 0.3 gave them: a class with a method for each moment of a rollout."""

from collections.abc import Sequence
from typing import Any

from lightning_core.types.rollout import Rollout
from lightning_core.types.span import Span


class Hook:
    """Base class of an object that is called at the four moments of each attempt.

    Override the methods of the moments that matter, as coroutines or as plain methods; a method may leave out
    arguments that it does not need. What it raises is logged and kept apart from the rollout. `rollout` has its
    attempt as `rollout.attempt`.

    A plugin with functions named as those in `lightning_core.hookspecs` is called at the same
    moments, and for runs and steps too.
    """

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Rollout) -> None:
        """Record that an attempt is about to be traced; see `lightning_rollout_start`."""

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> None:
        """Record that the agent is about to run, within its trace; see `lightning_trace_start`."""

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Rollout) -> None:
        """Record that the agent has ended, within its trace; see `lightning_trace_end`."""

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Sequence[Span]) -> None:
        """Record that an attempt's outcome is stored; see `lightning_rollout_end`."""
