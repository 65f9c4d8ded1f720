"""Store classes whose methods have only the parameters of agentlightning 0.3."""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

from lightning_core.errors import InvalidRequest, RunEnded

_LOOK_SECONDS = 0.5
"""How often a store that cannot wait for work is asked for some."""

_HARMLESS = frozenset({"request_id", "parent_id", "min_ended", "attempts"})
"""What such a method need not know: without it, it does at least what is asked for."""


def adapt(own: Callable[..., Any], declared: Callable[..., Any]) -> Callable[..., Any]:
    """Return a store's method as one that takes all that the interface declares.

    A request id, a parent and a number to wait for are left out. A wait for work asks again and again; metadata to
    add are set over those that are there. Anything else that the method does not take is refused when it is given.

    Args:
        own: The method of the store's class.
        declared: The method of the interface.
    """
    theirs, ours = inspect.signature(own).parameters, inspect.signature(declared).parameters
    missing = frozenset(ours) - frozenset(theirs)
    defaults = {name: ours[name].default for name in missing}

    @functools.wraps(own)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        later = {name: kwargs.pop(name) for name in missing & kwargs.keys()}
        unset: Any = defaults.get("add_metadata")
        wait_seconds = later.pop("wait_seconds", 0.0)
        added = later.pop("add_metadata", unset) if "metadata" in theirs else unset
        for name, value in later.items():
            if name not in _HARMLESS and value is not defaults[name]:
                raise InvalidRequest(
                    f"{type(self).__name__}.{own.__name__} takes no {name}, which is {value!r}; add that parameter"
                )
        if added is not unset:
            given = inspect.signature(own).bind(self, *args, **kwargs)
            metadata = given.arguments.get("metadata", unset)
            if metadata is unset:
                metadata = await _metadata_of(self, given.arguments["rollout_id"], given.arguments["attempt_id"])
            given.arguments["metadata"] = {**(metadata or {}), **added}
            args, kwargs = given.args[1:], given.kwargs
        if "wait_seconds" not in missing:
            return await own(self, *args, **kwargs)
        until = None if wait_seconds is None else time.monotonic() + wait_seconds
        while True:
            if self.__dict__.get("_own_run_has_ended"):
                raise RunEnded(f"run {self.run_id} has ended")
            found = await own(self, *args, **kwargs)
            left = _LOOK_SECONDS if until is None else until - time.monotonic()
            if found or left <= 0:
                return found
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    return call


async def _metadata_of(store: Any, rollout_id: str, attempt_id: str) -> dict[str, Any]:
    attempts = await store.query_attempts(rollout_id)
    matches = [each for each in attempts if attempt_id in ("latest", each.attempt_id)]
    return dict(matches[-1].metadata or {}) if matches else {}
