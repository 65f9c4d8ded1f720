"""How a call asks whether the budget lets it start, wherever the budget is counted."""

from typing import Protocol

from lightning_core.proxy.budget import Budget


class Spending(Protocol):
    """Counts calls."""

    async def start_call(self) -> None:
        """Count a call that is about to start.

        Raises:
            BudgetExhausted: When a limit is reached. It must not start.
        """
        ...

    def end_call(self, *, tokens: int, usd: float | None) -> None:
        """Count what a call used; `usd` is None where nobody knows what it cost."""
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
