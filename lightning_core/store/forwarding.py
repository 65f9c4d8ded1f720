"""A store that hands every call to another one."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from lightning_core.store.base import OPERATIONS, LightningStore, LightningStoreCapabilities
from lightning_core.types import Attempt

if TYPE_CHECKING:
    # The methods are made below, in a loop. For a type checker, take them from where they are written out.
    from lightning_core.store.facade import StoreFacade as _Complete
else:
    _Complete = LightningStore


class ForwardingStore(_Complete):
    """Calls the methods of the store that `target` returns; a subclass has its own of some."""

    @abstractmethod
    def target(self) -> LightningStore:
        """Return the store to call."""

    async def call(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Call a method of that store."""
        return await method(*args, **kwargs)

    @property
    def run_id(self) -> str:
        return self.target().run_id

    def for_run(self, run_id: str) -> LightningStore:
        return self.target().for_run(run_id)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.target().capabilities

    @property
    def lease_seconds(self) -> float | None:
        return self.target().lease_seconds

    def keeping_deadlines(self) -> AbstractAsyncContextManager[None]:
        return self.target().keeping_deadlines()

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None] | None:
        return self.target().watch(listener)

    def otlp_traces_endpoint(self) -> str:
        return self.target().otlp_traces_endpoint()

    def attempt_key(self, attempt: Attempt) -> str | None:
        return self.target().attempt_key(attempt)


def _forward(name: str) -> Any:
    method = getattr(LightningStore, name)

    @functools.wraps(method)
    async def call(self: ForwardingStore, *args: Any, **kwargs: Any) -> Any:
        return await self.call(getattr(self.target(), name), *args, **kwargs)

    return call


for _name in OPERATIONS:
    setattr(ForwardingStore, _name, _forward(_name))
