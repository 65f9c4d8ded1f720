"""What calls use: the budget of the run, and the limits of each attempt."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, PositiveFloat, PositiveInt, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from lightning_core.budget import Budget, Reserve
from lightning_core.errors import AttemptLimitReached, BudgetExhausted
from lightning_proxy.owner import Owner

MAX_ATTEMPTS = 100_000
"""Of how many attempts it is remembered what they used; the newest."""

FIRST_ANSWER_TOKENS = 4096
"""What a call without a limit of its own reserves for its answer, until its model has answered one."""

BYTES_PER_TOKEN = 3
"""Of a request's body. Texts have more bytes a token, so that a reserve is rather too large."""

TOKENS_PER_FILE = 1600
"""Of an image or another file in base64, whatever its size: what providers count for a large image."""

_FILES = re.compile(rb"[A-Za-z0-9+/=]{1024,}")

_OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""What the APIs call the limit of an answer."""


@with_config(ConfigDict(extra="forbid"))
class AttemptLimits(TypedDict, total=False):
    """What one attempt may use; as a budget has it."""

    usd: PositiveFloat
    tokens: PositiveInt
    calls: PositiveInt
    seconds: PositiveFloat
    """From its first call on."""


@dataclass(slots=True)
class _Limit:
    """A budget, and the line of the calls that wait for it: the first asks, the others wait behind it."""

    budget: Budget
    line: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Started:
    """A call that may start, with what it has reserved in each budget that counts it."""

    reserves: Sequence[tuple[Budget, Reserve]]

    def settle(self, *, tokens: int, usd: float | None) -> None:
        """Count what the call used; `usd` is None where it is not known what it cost."""
        for budget, reserve in self.reserves:
            budget.end_call(reserve, tokens=tokens, usd=usd)


class Spending:
    """Counts what calls use. Belongs to one event loop.

    Args:
        budget: The run's; None for no limit.
        limits: Of each attempt; None for none.
    """

    def __init__(self, budget: Budget | None, limits: AttemptLimits | None) -> None:
        self._run = None if budget is None else _Limit(budget)
        self._limits = limits
        self._attempts: OrderedDict[Owner, _Limit] = OrderedDict()

    @property
    def has_limits(self) -> bool:
        """Whether there is anything to count for."""
        return self._run is not None or bool(self._limits)

    @property
    def limits_usd(self) -> bool:
        """Whether money is limited, so that each model needs a price."""
        return "usd" in (self._limits or ()) or (self._run is not None and "usd" in self._run.budget.limits)

    async def start_call(self, attempt: Owner | None, most: Callable[[], Reserve]) -> Started:
        """Return when a call may start: at once, or when other calls have settled.

        Args:
            attempt: Whose limits count it; None for a call that none do.
            most: Returns what it may use at the most, by what is known when it is asked.

        Raises:
            AttemptLimitReached: When a limit of the attempt is reached, or leaves too little. It must not start.
            BudgetExhausted: When one of the run does.
        """
        reserves: list[tuple[Budget, Reserve]] = []
        try:
            if attempt is not None and self._limits:
                limit = self._of(attempt)
                try:
                    reserves.append((limit.budget, await _reserve(limit, most)))
                except BudgetExhausted as exc:
                    message = f"{exc}, which attempt_limits of the proxy sets; no further call of it is answered"
                    raise AttemptLimitReached(message) from exc
            if self._run is not None:
                reserves.append((self._run.budget, await _reserve(self._run, most)))
        except BaseException:
            Started(reserves).settle(tokens=0, usd=0.0)
            raise
        return Started(reserves)

    def end_attempt(self, attempt: Owner) -> None:
        """Forget what an attempt used that has ended: no call of it is let through any more."""
        self._attempts.pop(attempt, None)

    def _of(self, attempt: Owner) -> _Limit:
        found = self._attempts.get(attempt)
        if found is None:
            found = self._attempts[attempt] = _Limit(Budget(**(self._limits or {})))
            found.budget.whose = "the attempt's limit"
            if len(self._attempts) > MAX_ATTEMPTS:
                self._attempts.popitem(last=False)
        return found


async def _reserve(limit: _Limit, most: Callable[[], Reserve]) -> Reserve:
    loop = asyncio.get_running_loop()
    async with limit.line:
        while True:
            room, reserve = asyncio.Event(), most()

            def tell(room: asyncio.Event = room) -> None:
                with suppress(RuntimeError):  # the loop is closed, and with it all that waited
                    loop.call_soon_threadsafe(room.set)

            if limit.budget.start_call(reserve, on_room=tell):
                return reserve
            await room.wait()


class UsageSoFar:
    """What the calls of each model used at the most, by which the next ones are estimated."""

    def __init__(self) -> None:
        self._largest: dict[str | None, tuple[int, int]] = {}

    def record(self, model: str | None, input_tokens: int, output_tokens: int) -> None:
        """Record what a call used."""
        given, taken = self._largest.get(model, (0, 0))
        self._largest[model] = max(given, input_tokens), max(taken, output_tokens)

    def most(self, model: str | None, fields: Mapping[str, Any], body: bytes) -> tuple[int, int]:
        """Return how many tokens may go into a call of an API and come out of it, all choices together."""
        files = _FILES.findall(body) if b"base64" in body else []
        size = len(body) - sum(map(len, files))
        given, taken = -(-size // BYTES_PER_TOKEN) + TOKENS_PER_FILE * len(files), FIRST_ANSWER_TOKENS
        if model in self._largest:
            largest, taken = self._largest[model]
            if fields.get("previous_response_id") is not None:  # the conversation before it is not in the body
                given = max(given, largest)
        asked = next(
            (value for name in _OUTPUT_LIMITS if isinstance(value := fields.get(name), int) and value >= 0), None
        )
        if asked is not None:
            prompts = fields.get("prompt")
            count = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
            choices = [value for name in ("n", "best_of") if isinstance(value := fields.get(name), int)]
            taken = asked * count * max(1, *choices, 1)
        return given, taken
