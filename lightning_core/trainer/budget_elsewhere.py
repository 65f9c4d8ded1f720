"""The budget of a proxy that runs by itself, as a run hears of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from lightning_core.errors import ProxyError
from lightning_core.proxy.budget import Limit
from lightning_core.runs.result import BudgetUse

if TYPE_CHECKING:
    from lightning_core.proxy import RemoteProxy

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""How long after it could not be reached the proxy is asked again."""

_LAST_SECONDS = 1.0
"""How long the last answer may hold up the end of a run."""


class BudgetElsewhere:
    """What a proxy of another process counts, for all who call it: this run, and perhaps others.

    It is asked to answer when it has refused a call. A refusal before `watching` began is not this run's.

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
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._ask()

    async def look(self) -> Limit | None:
        """Return the limit that has kept a call from starting since `watching` began; None where none has."""
        if self._refusals_before is None:
            return None
        said = await self._ask()
        return None if said is None else self._refused(said)

    async def _watch(self, tell: Callable[[Limit], None]) -> None:
        is_known = True
        while self._refusals_before is not None:
            try:
                said = await self._proxy.budget_beyond(self._refusals_before)
            except ProxyError as exc:
                if is_known:
                    self._warn(exc)
                is_known = False
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            is_known = True
            if said is None:  # another proxy is there by now
                return
            self._take(said)
            limit = self._refused(said)
            if limit is not None:
                tell(limit)
                return

    def _refused(self, said: dict[str, Any]) -> Limit | None:
        before = self._refusals_before
        if before is None or said["refusals"] <= before:
            # Less than before are those of a proxy that was started again.
            self._refusals_before = None if before is None else said["refusals"]
            return None
        limit: Limit = said["reached"]
        return limit

    async def _ask(self) -> dict[str, Any] | None:
        try:
            said: dict[str, Any] | None = (await self._proxy.status()).get("budget")
        except ProxyError as exc:
            self._warn(exc)
            return None
        self._take(said)
        return said

    def _warn(self, error: ProxyError) -> None:
        # A run whose proxy is gone finds that out by its calls.
        logger.warning("lightning.proxy_budget_unknown url=%s: %s", self._proxy.url, error)

    def _take(self, said: dict[str, Any] | None) -> None:
        if said is not None:
            self.use = BudgetUse(
                limits=said["limits"],
                used=said["used"],
                unpriced_calls=said["unpriced_calls"],
                proxy=self._proxy.url,
            )
