"""What calls use: the budget of the run, and the limits of each attempt."""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Protocol

from pydantic import ConfigDict, PositiveFloat, PositiveInt, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_core.budget import Budget, Limit
from lightning_core.errors import AttemptLimitReached, BudgetExhausted
from lightning_proxy.owner import Owner

MAX_ATTEMPTS = 100_000
"""Of how many attempts it is remembered what they used; the newest."""


@with_config(ConfigDict(extra="forbid"))
class AttemptLimits(TypedDict, total=False):
    """What one attempt may use; as a budget has it."""

    usd: PositiveFloat
    tokens: PositiveInt
    calls: PositiveInt
    seconds: PositiveFloat
    """From its first call on."""


class Spending(Protocol):
    """Counts calls."""

    async def start_call(self, attempt: Owner | None) -> None:
        """Count a call that is about to start.

        Args:
            attempt: Whose limits count it; None for a call that none do.

        Raises:
            AttemptLimitReached: When a limit of the attempt is reached. It must not start.
            BudgetExhausted: When one of the run is.
        """
        ...

    def end_call(self, attempt: Owner | None, *, tokens: int, usd: float | None) -> None:
        """Count what a call used; `usd` is None where it is not known what it cost."""
        ...


class LocalSpending:
    """Counts in this process. Belongs to one event loop.

    Args:
        budget: The run's; None for no limit.
        limits: Of each attempt; None for none.
    """

    def __init__(self, budget: Budget | None, limits: AttemptLimits | None) -> None:
        self._budget = budget
        self._limits = limits
        self._attempts: OrderedDict[Owner, Budget] = OrderedDict()

    @property
    def has_limits(self) -> bool:
        """Whether there is anything to count for."""
        return self._budget is not None or bool(self._limits)

    async def start_call(self, attempt: Owner | None) -> None:
        """See `Spending.start_call`."""
        if attempt is not None and self._limits:
            used = self._attempts.get(attempt)
            if used is None:
                used = self._attempts[attempt] = Budget(**self._limits)
                if len(self._attempts) > MAX_ATTEMPTS:
                    self._attempts.popitem(last=False)
            try:
                used.start_call()
            except BudgetExhausted as exc:
                raise AttemptLimitReached(_in_words(used)) from exc
        if self._budget is not None:
            self._budget.start_call()

    def end_call(self, attempt: Owner | None, *, tokens: int, usd: float | None) -> None:
        """See `Spending.end_call`."""
        if attempt is not None and (used := self._attempts.get(attempt)) is not None:
            used.end_call(tokens=tokens, usd=usd)
        if self._budget is not None:
            self._budget.end_call(tokens=tokens, usd=usd)

    def end_attempt(self, attempt: Owner) -> None:
        """Forget what an attempt used that has ended: no call of it is let through any more."""
        self._attempts.pop(attempt, None)


def _in_words(used: Budget) -> str:
    name = used.reached
    assert name is not None
    return (
        f"the attempt has used up its {used.limits[name]:g} {name}, which attempt_limits of the proxy sets; no further "
        "call of it is answered"
    )


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
            with suppress(RuntimeError):  # the loop is closed, and with it all that waited
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
        """Release all waiting calls, and let none wait from now on: the proxy is about to stop."""
        self._is_closed = True
        for refused in tuple(self._waiting):
            _settle(refused)


def _settle(refused: "asyncio.Future[None]") -> None:
    if not refused.done():
        refused.set_result(None)
