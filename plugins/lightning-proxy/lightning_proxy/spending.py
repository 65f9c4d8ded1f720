"""How a call asks whether the budget lets it start, wherever the budget is counted."""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from lightning_core.budget import Budget, Limit


class Spending(Protocol):
    """Counts calls."""

    async def start_call(self) -> None:
        """Count a call that is about to start.

        Raises:
            BudgetExhausted: When a limit is reached. It must not start.
        """
        ...

    def end_call(self, *, tokens: int, usd: float | None) -> None:
        """Count what a call used; `usd` is None where it is not known what it cost."""
        ...


class LocalSpending:
    """Counts in this process.

    Args:
        budget: Where.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    async def start_call(self) -> None:
        """See `Spending.start_call`."""
        self._budget.start_call()

    def end_call(self, *, tokens: int, usd: float | None) -> None:
        """See `Spending.end_call`."""
        self._budget.end_call(tokens=tokens, usd=usd)


class RefusalWaits:
    """Lets others wait. Belongs to one event loop.

    Args:
        budget: The budget; None for none.
    """

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    async def beyond(self, refusals: int, seconds: float) -> dict[str, Any] | None:
        """Return how the budget stands, as soon as it has refused more calls than these; None without a budget.

        Args:
            refusals: How many are known.
            seconds: After these it is returned in any case.
        """
        budget = self._budget
        if budget is None:
            return None
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[None] = loop.create_future()

        def tell(limit: Limit) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, refused)

        stop_listening = budget.listen_to_refusals(tell)
        self._waiting.add(refused)
        try:
            if budget.refusals <= refusals and not self._is_closed:
                await asyncio.wait((refused,), timeout=seconds)
        finally:
            self._waiting.discard(refused)
            stop_listening()
        return budget.status()

    def close(self) -> None:
        """Let everybody go who waits, and nobody wait from now on: the proxy is about to stop."""
        self._is_closed = True
        for refused in tuple(self._waiting):
            _settle(refused)


def _settle(refused: "asyncio.Future[None]") -> None:
    if not refused.done():
        refused.set_result(None)
