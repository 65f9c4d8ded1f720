"""When a call may be sent: in its turn, not during a pause, within the run's budget and the limits of its attempt."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightning_core.budget import Budget, Reserve
from lightning_core.errors import AttemptLimitReached, BudgetExhausted
from lightning_core.store.clock import Clock
from lightning_proxy.owner import Owner
from lightning_proxy.request import proxy_stopped, unavailable
from lightning_proxy.settings import AttemptLimits, Settings

_ABORT_SECONDS = 5.0
"""How long to wait for calls to end after they were cut off."""

MAX_WAITING_CALLS = 16_384

PAUSE_SECONDS = 60.0
"""How long a call waits for the end of a pause that does not say otherwise."""

_STOPS = "the proxy stops"

Abort = Callable[[str], None]
"""Cuts a call off, with the reason."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How the calls ended that were in flight when `drain` began."""

    finished: int
    """How many ended by themselves, or wait for another try."""
    aborted: int
    """How many were cut off at the timeout. A backend that ignores this may still work on one."""


class Limiter:
    """Limits how many calls are in flight, and holds all of them back during a pause: a semaphore and a gate.

    A call acquires before it is sent, is parked while it waits for another try, reacquires for that, and is released at
    its end. A parked call keeps its place, but does not keep `drain` waiting.

    Args:
        clock: How long pauses last.
        settings: How many calls may have a place, and how long others wait for one.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._places = asyncio.Semaphore(settings.max_concurrent_calls)
        self._max_calls = settings.max_concurrent_calls
        self._queue_seconds = settings.queue_seconds
        self._pause_seconds = PAUSE_SECONDS
        self._in_flight: dict[object, Abort] = {}
        self._waiting: dict[object, Abort] = {}
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """How many calls are in flight."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn, for the end of a pause, for the budget, or for another try."""
        return len(self._waiting)

    @property
    def is_paused(self) -> bool:
        """Whether new calls wait."""
        return not self._open.is_set()

    def pause(self, seconds: float | None = None) -> None:
        """Let no new call start. Idempotent.

        Args:
            seconds: How long a call that comes from now on waits for `resume`; None for a minute.
        """
        self._pause_seconds = PAUSE_SECONDS if seconds is None else seconds
        self._open.clear()

    def resume(self) -> None:
        """Let calls start again."""
        self._open.set()

    def close(self) -> None:
        """Refuse new calls, and cut off those that wait. Calls in flight go on."""
        self._is_closed = True
        for abort in tuple(self._waiting.values()):
            abort(_STOPS)

    async def drain(self, timeout: float | None) -> Drained:
        """Wait until no call is in flight; cut off those that still are at the timeout.

        Calls that are cut off get five seconds to end. It does not pause: call `pause` first to change weights.

        Args:
            timeout: Seconds; None for no limit.
        """
        before, aborted = len(self._in_flight), 0
        if not await self._is_set_within(self._idle, timeout):
            aborted = len(self._in_flight)
            for abort in tuple(self._in_flight.values()):
                abort("the proxy is paused for new weights, and the call took too long to end")
            await self._is_set_within(self._idle, _ABORT_SECONDS)
        return Drained(finished=max(0, before - aborted), aborted=aborted)

    async def acquire(self, call: object, abort: Abort) -> None:
        """Return when a call may start.

        Args:
            call: The call.
            abort: Cuts it off.

        Raises:
            Refused: When it waited for too long, too many wait, or the proxy stops.
        """
        if self._is_closed:
            raise proxy_stopped()
        if (self._places.locked() or self.is_paused) and len(self._waiting) >= MAX_WAITING_CALLS:
            message = f"{self._max_calls} calls are under way and {self.waiting} wait; try again in a moment"
            raise unavailable("proxy_full", message)
        self._waiting[call] = abort
        if not self._places.locked():
            await self._places.acquire()  # at once
        else:
            await self._wait_for_place(call)
        await self.reacquire(call)

    async def _wait_for_place(self, call: object) -> None:
        try:
            async with asyncio.timeout(self._queue_seconds):
                await self._places.acquire()
        except BaseException as exc:
            del self._waiting[call]
            if not isinstance(exc, TimeoutError):
                raise
            message = f"{self._max_calls} calls are under way, and none ended within {self._queue_seconds:g} s"
            raise unavailable("proxy_busy", f"{message}; try again") from exc

    def park(self, call: object) -> None:
        """Take a call out of flight: no backend works on it. Ignores a call that has not acquired."""
        if (abort := self._in_flight.pop(call, None)) is not None:
            self._waiting[call] = abort
            self._notify_if_idle()
            if self._is_closed:
                abort(_STOPS)

    async def reacquire(self, call: object) -> None:
        """Return when a parked call may be sent: not in a pause.

        Raises:
            Refused: When the pause lasts for too long.
        """
        if call not in self._waiting:
            return
        seconds = self._pause_seconds
        while not self._open.is_set():
            if not await self._is_set_within(self._open, seconds):
                message = f"paused for new weights, for more than {seconds:g} s by now; try again in a moment"
                raise unavailable("proxy_paused", f"the proxy is {message}")
        self._in_flight[call] = self._waiting.pop(call)
        self._idle.clear()

    def release(self, call: object) -> None:
        """Record the end of a call. Ignores one that has no place."""
        if (self._in_flight.pop(call, None) or self._waiting.pop(call, None)) is not None:
            self._places.release()
            self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if not self._in_flight:
            self._idle.set()

    async def _is_set_within(self, event: asyncio.Event, seconds: float | None) -> bool:
        """Whether it was set in this time, if only for a moment."""
        if event.is_set():
            return True
        waiting = asyncio.ensure_future(event.wait())
        try:
            return await self._clock.wait(waiting, seconds)
        finally:
            waiting.cancel()


LAST_CALLS_SECONDS = 60.0
"""How long calls under way may hold up the refusal that ends a run, where they have used the last of its budget."""

MAX_ATTEMPTS = 100_000
"""Of how many attempts it is remembered what they used; the newest."""

FIRST_ANSWER_TOKENS = 4096
"""What a call without a limit of its own reserves for its answer, until its model has answered one."""

BYTES_PER_TOKEN = 3
"""Of a request's body. Texts have more bytes a token, so that a reserve is rather too large."""

TOKENS_PER_FILE = 1600
"""Of an image or another file in base64, whatever its size: what providers count for a large image."""

# Only from where a word begins: from each of its characters on, long words would take their length squared.
_FILES = re.compile(rb"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{1024,}")


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


NOT_COUNTED = Started(())
"""A call that no budget counts."""


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
        limit = self._attempts.get(attempt)
        if limit is None:
            limit = self._attempts[attempt] = _Limit(Budget(**(self._limits or {})))
            limit.budget.whose = "the attempt's limit"
            if len(self._attempts) > MAX_ATTEMPTS:
                self._attempts.popitem(last=False)
        return limit


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
            try:
                async with asyncio.timeout(None if limit.budget.reached is None else LAST_CALLS_SECONDS):
                    await room.wait()
            except TimeoutError:
                limit.budget.start_call(reserve)  # which refuses it, unless there is room just now
                return reserve


class UsageSoFar:
    """What the calls of each model used at the most, by which the next ones are estimated."""

    def __init__(self) -> None:
        self._largest: dict[str | None, tuple[int, int]] = {}

    def record(self, model: str | None, input_tokens: int, output_tokens: int) -> None:
        """Record what a call used."""
        given, taken = self._largest.get(model, (0, 0))
        self._largest[model] = max(given, input_tokens), max(taken, output_tokens)

    def most(
        self, model: str | None, fields: Mapping[str, Any], body: bytes, limits: Iterable[str] = ("max_tokens",)
    ) -> tuple[int, int]:
        """Return how many tokens may go into a call and come out of it, all choices together.

        `limits` is what its API calls the limit of an answer: of another API's name no engine takes notice.
        """
        files = _FILES.findall(body) if b"base64" in body else []
        size = len(body) - sum(map(len, files))
        given, taken = -(-size // BYTES_PER_TOKEN) + TOKENS_PER_FILE * len(files), FIRST_ANSWER_TOKENS
        if model in self._largest:
            largest, taken = self._largest[model]
            if fields.get("previous_response_id") is not None:  # the conversation before it is not in the body
                given = max(given, largest)
        asked = [value for name in limits if isinstance(value := fields.get(name), int) and value >= 0]
        if asked:
            prompts = fields.get("prompt")
            count = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
            choices = [value for name in ("n", "best_of") if isinstance(value := fields.get(name), int)]
            taken = max(asked) * count * max(1, *choices, 1)
        return given, taken
