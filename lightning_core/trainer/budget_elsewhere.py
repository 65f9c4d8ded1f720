"""The budget of a proxy that runs by itself, as a run hears of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ProxyError
from lightning_core.proxy.budget import Limit
from lightning_core.runs.result import BudgetUse

if TYPE_CHECKING:
    from lightning_core.proxy import RemoteProxy

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often the proxy is asked. A runner that was refused a call waits longer than this before it claims again."""


class BudgetElsewhere:
    """What a proxy of another process counts, for all who call it: this run, and perhaps others.

    Such a proxy tells nobody that it has refused a call, so it is asked. A refusal before `watching` began is not this
    run's.

    Args:
        proxy: The proxy; asked only while `watching`.
    """

    def __init__(self, proxy: "RemoteProxy") -> None:
        self._proxy = proxy
        self._refusals_before: int | None = None
        self.use: BudgetUse | None = None
        """How it stood when it was asked last; None where the proxy has no budget, or does not say."""

    @asynccontextmanager
    async def watching(self, tell: Callable[[Limit], None]) -> AsyncIterator[None]:
        """Ask the proxy during the block, and tell which limit has kept a call of this time from starting."""
        said = await self._ask()
        if said is None:
            yield
            return
        self._refusals_before = int(said["refusals"])
        task = asyncio.create_task(self._watch(tell), name="budget of the proxy")
        try:
            yield
        finally:
            self._refusals_before = None
            task.cancel()
            await asyncio.wait((task,))

    async def look(self) -> Limit | None:
        """Return the limit that has kept a call from starting since `watching` began; None where none has."""
        if self._refusals_before is None:
            return None
        said = await self._ask()
        if said is None or said["refusals"] <= self._refusals_before:
            return None
        limit: Limit = said["reached"]
        return limit

    async def _watch(self, tell: Callable[[Limit], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            limit = await self.look()
            if limit is not None:
                tell(limit)
                return

    async def _ask(self) -> dict[str, Any] | None:
        try:
            said: dict[str, Any] | None = (await self._proxy.status()).get("budget")
        except ProxyError as exc:
            # A run whose proxy is gone finds that out by its calls.
            logger.warning("lightning.proxy_budget_unknown url=%s: %s", self._proxy.url, exc)
            return None
        if said is not None:
            self.use = BudgetUse(
                limits=said["limits"],
                used=said["used"],
                unpriced_calls=said["unpriced_calls"],
                proxy=self._proxy.url,
            )
        return said
