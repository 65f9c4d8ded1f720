"""The decorator for reward functions of agentlightning 0.1."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def reward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Emit what a function returns as a reward; deprecated, as in 0.3: call `emit_reward`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return _emitted(await function(*args, **kwargs))

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _emitted(function(*args, **kwargs))

    return call


def _emitted(value: Any) -> Any:
    from lightning_core.emitter import emit_reward  # late: that package has this decorator

    emit_reward(value)
    return value
