"""The trace around an attempt."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from lightning_core.former import former
from lightning_core.store import LightningStore
from lightning_core.tracer import Trace, Tracer


@functools.cache
def _takes_store(trace_context: Callable[..., Any]) -> bool:
    parameters = inspect.signature(trace_context).parameters.values()
    return any(each.name == "store" or each.kind is each.VAR_KEYWORD for each in parameters)


@asynccontextmanager
async def traced(tracer: Tracer, store: LightningStore, rollout_id: str, attempt_id: str) -> AsyncIterator[Trace]:
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
