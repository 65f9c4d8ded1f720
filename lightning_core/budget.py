"""A hard limit for a whole run: money, tokens, calls and time."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import PositiveFloat

from lightning_core.errors import BudgetExhausted, ConfigError
from lightning_core.registry import check_options
from lightning_core.texts import number

Limit = Literal["usd", "tokens", "calls", "seconds"]
LIMITS: tuple[Limit, ...] = ("usd", "tokens", "calls", "seconds")


class Reserve(NamedTuple):
    """What a call may use at the most."""

    tokens: int = 0
    usd: float = 0.0


NOTHING = Reserve()


class Budget:
    """Counts what model calls use, and says when a limit is reached. One is shared by all who call; thread-safe.

    A call reserves what it may use at the most before it starts, and settles when it ends. So parallel calls do not
    pass a limit together, except by what one uses beyond its reserve. A budget is used up when a limit is reached, or
    leaves too little for a call while no other is under way. No further call starts then.

    Args:
        usd: US dollars.
        tokens: Tokens of prompts and answers.
        calls: Calls that start.
        seconds: Time from `start` on.
        clock: Returns seconds that never go back.

    Raises:
        InvalidOptions: When a limit is not a number above 0.
    """

    def __init__(
        self,
        *,
        usd: PositiveFloat | None = None,
        tokens: PositiveFloat | None = None,
        calls: PositiveFloat | None = None,
        seconds: PositiveFloat | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given: dict[Limit, float | None] = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
        check_options("budget", given, Budget)
        self.limits: Mapping[Limit, float] = {
            name: value for name, value in given.items() if value is not None and math.isfinite(value)
        }
        self.whose = "the run's budget"
        """For messages."""
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._earlier_seconds = 0.0
        self._used: dict[Limit, float] = {"usd": 0.0, "tokens": 0, "calls": 0}
        self._reserved = Reserve()
        self._under_way = 0
        self._room_listeners: list[Callable[[], object]] = []
        self._unpriced_calls = 0
        self._reached: Limit | None = None
        self._refused: Limit | None = None
        self._refusals = 0
        self._refusal_listeners: list[Callable[[Limit], object]] = []

    @classmethod
    def of(cls, spec: "Budget | Mapping[str, Any] | None") -> "Budget | None":
        """Return a budget of whatever says one: `{"usd": 5, "seconds": 3600}`; None for none.

        Raises:
            ConfigError: Names what a budget does not have.
        """
        if spec is None or isinstance(spec, Budget):
            return spec
        if not isinstance(spec, Mapping):
            raise ConfigError(
                f"budget is of type {type(spec).__name__}; it is a mapping with some of {', '.join(LIMITS)}, as in "
                "{'usd': 5, 'seconds': 3600}"
            )
        check_options("budget", spec, cls)
        return cls(**spec)

    @property
    def reached(self) -> Limit | None:
        """Which limit is reached; None while calls may start. Stays what it was first."""
        with self._lock:
            return self._look()

    @property
    def used(self) -> dict[Limit, float]:
        """What was used so far, of each kind."""
        with self._lock:
            return {**self._used, "seconds": self._elapsed()}

    @property
    def is_time_over(self) -> bool:
        """Whether the limit of `seconds` is reached, also where another one was reached before it."""
        return "seconds" in self.limits and self.used["seconds"] >= self.limits["seconds"]

    @property
    def refused(self) -> Limit | None:
        """Which limit kept a call from starting; None while none was kept from it."""
        return self._refused

    @property
    def refusals(self) -> int:
        """How many calls were kept from starting."""
        return self._refusals

    @property
    def unpriced_calls(self) -> int:
        """How many calls count nothing in `usd`, because their price is not known."""
        return self._unpriced_calls

    def start(self) -> None:
        """Let the time begin, as the first call does. Idempotent."""
        with self._lock:
            if self._began is None:
                self._began = self._clock()

    def listen_to_refusals(self, listener: Callable[[Limit], object]) -> Callable[[], None]:
        """Call this with the limit when a call must not start, again and again; in the thread of the call.

        Returns:
            What ends it.
        """
        with self._lock:
            self._refusal_listeners.append(listener)
        return lambda: self._refusal_listeners.remove(listener)

    def restore(self, used: Mapping[str, float], *, unpriced_calls: int = 0) -> None:
        """Count what was used before: what `used` said then. What is counted already is not counted again."""
        with self._lock:
            for name in self._used:
                self._used[name] = max(self._used[name], used.get(name, 0))
            self._unpriced_calls = max(self._unpriced_calls, unpriced_calls)
            self._earlier_seconds += max(0.0, used.get("seconds", 0.0) - self._elapsed())

    def start_call(self, reserve: Reserve = NOTHING, *, on_room: Callable[[], object] | None = None) -> bool:
        """Count a call that is about to start, and reserve what it may use. Each call that starts ends with `end_call`.

        Args:
            reserve: What it may use at the most.
            on_room: Called once, in the thread of `end_call`, when it is worth asking again. Without it the call is
                refused where it would have to wait.

        Returns:
            Whether it may start. If not, others are under way that hold what it needs, or have used the last of it.

        Raises:
            BudgetExhausted: When the budget is used up. The call must not start.
        """
        self.start()
        with self._lock:
            used_up = self._look()
            refused = used_up or self._lacking(reserve)
            may_wait = used_up is None or (used_up != "seconds" and not self._refusals)
            if refused is not None and may_wait and self._under_way and on_room is not None:
                self._room_listeners.append(on_room)  # the first refusal ends a run, and what it has under way
                return False
            if refused is None:
                self._used["calls"] += 1
                self._under_way += 1
                self._reserved = Reserve(self._reserved.tokens + reserve.tokens, self._reserved.usd + reserve.usd)
            else:
                self._refused = self._reached = refused
                self._refusals += 1
        if refused is not None:
            for listener in tuple(self._refusal_listeners):
                listener(refused)
            used = self.used
            advice = _advice(reserve) if used[refused] < self.limits[refused] else ""
            raise BudgetExhausted(f"{self.whose} {in_words_of_end(refused, self.limits, used)}{advice}")
        return True

    def end_call(self, reserve: Reserve = NOTHING, *, tokens: int = 0, usd: float | None = None) -> None:
        """Count what a call used, and give back what it had reserved.

        Args:
            reserve: What it started with.
            tokens: Of its prompt and its answer.
            usd: What it cost; None where that is not known.
        """
        with self._lock:
            self._under_way -= 1
            self._reserved = Reserve(self._reserved.tokens - reserve.tokens, self._reserved.usd - reserve.usd)
            if not self._under_way:
                self._reserved = Reserve()  # sums of floats leave a rest
            self._used["tokens"] += tokens
            self._used["usd"] += usd or 0.0
            self._unpriced_calls += usd is None
            self._look()
            waiting, self._room_listeners = self._room_listeners, []
        for listener in waiting:
            listener()

    def status(self) -> dict[str, Any]:
        """Return how it stands, for programs."""
        return {
            "limits": dict(self.limits),
            "used": self.used,
            "unpriced_calls": self._unpriced_calls,
            "reached": self.reached,
            "refusals": self._refusals,
        }

    def _look(self) -> Limit | None:
        """Return the limit that is reached. In the lock."""
        for name, limit in self.limits.items():
            if self._reached is None and (self._elapsed() if name == "seconds" else self._used[name]) >= limit:
                self._reached = name
        return self._reached

    def _lacking(self, reserve: Reserve) -> Limit | None:
        """Return the limit that leaves too little for a call just now. In the lock."""
        needs: dict[Limit, float] = {
            "tokens": self._reserved.tokens + reserve.tokens,
            "usd": self._reserved.usd + reserve.usd,
        }
        return next(
            (name for name, need in needs.items() if self._used[name] + need > self.limits.get(name, math.inf)), None
        )

    def _elapsed(self) -> float:
        return self._earlier_seconds + (0.0 if self._began is None else self._clock() - self._began)


def _advice(reserve: Reserve) -> str:
    cost = f" and {reserve.usd:.4g} usd" if reserve.usd else ""
    return f"; it may use {reserve.tokens:,} tokens{cost}, and less with a smaller max_tokens"


def in_words_of_end(name: str, limits: Mapping[Any, float], used: Mapping[Any, float]) -> str:
    """Say how a limit has ended a budget, for behind the budget's name."""
    how = "is used up" if used[name] >= limits[name] else "leaves too little for another call"
    return f"of {number(limits[name])} {name} {how} ({number(used[name])} {name} by now)"
