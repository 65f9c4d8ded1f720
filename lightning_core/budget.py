"""A hard limit for a whole run: money, tokens, calls and time."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import PositiveFloat

from lightning_core.errors import BudgetExhausted, ConfigError
from lightning_core.registry import check_options

Limit = Literal["usd", "tokens", "calls", "seconds"]
LIMITS: tuple[Limit, ...] = ("usd", "tokens", "calls", "seconds")


class Budget:
    """Counts what model calls use, and says when a limit is reached. One is shared by all who call; thread-safe.

    When a limit is reached no further call starts. Calls that are under way then end, and count: their tokens and their
    price are known only at their end.

    Args:
        usd: US dollars; counted where prices are known.
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
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._earlier_seconds = 0.0
        self._used: dict[Limit, float] = {"usd": 0.0, "tokens": 0, "calls": 0}
        self._unpriced_calls = 0
        self._reached: Limit | None = None
        self._refused: Limit | None = None
        self._refusals = 0
        self._listeners: list[Callable[[Limit], None]] = []
        self._refusal_listeners: list[Callable[[Limit], None]] = []

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
                f"budget is a {type(spec).__name__}; it is a mapping with some of {', '.join(LIMITS)}, as in "
                "{'usd': 5, 'seconds': 3600}"
            )
        check_options("budget", spec, cls)
        return cls(**spec)

    @property
    def reached(self) -> Limit | None:
        """Which limit is reached; None while calls may start. Stays what it was first."""
        with self._lock:
            told = self._look()
        self._tell(told)
        return self._reached

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

    def listen(self, listener: Callable[[Limit], None]) -> None:
        """Call this with the limit, once, when one is reached; in the thread where that comes out."""
        with self._lock:
            self._listeners.append(listener)
            reached = self._reached
        if reached is not None:
            listener(reached)

    def listen_to_refusals(self, listener: Callable[[Limit], None]) -> Callable[[], None]:
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
            told = self._look()
        self._tell(told)

    def start_call(self) -> None:
        """Count a call that is about to start.

        Raises:
            BudgetExhausted: When a limit is reached. It must not start.
        """
        self.start()
        with self._lock:
            told = self._look()
            refused = self._reached
            if refused is None:
                self._used["calls"] += 1
            else:
                self._refused = refused
                self._refusals += 1
        self._tell(told)
        if refused is not None:
            for listener in tuple(self._refusal_listeners):
                listener(refused)
            raise BudgetExhausted(self.in_words())

    def end_call(self, *, tokens: int = 0, usd: float | None = None) -> None:
        """Count what a call used.

        Args:
            tokens: Of its prompt and its answer.
            usd: What it cost; None where that is not known.
        """
        with self._lock:
            self._used["tokens"] += tokens
            self._used["usd"] += usd or 0.0
            self._unpriced_calls += usd is None
            told = self._look()
        self._tell(told)

    def status(self) -> dict[str, Any]:
        """Return how it stands, for programs."""
        return {
            "limits": dict(self.limits),
            "used": self.used,
            "unpriced_calls": self._unpriced_calls,
            "reached": self.reached,
            "refusals": self._refusals,
        }

    def in_words(self) -> str:
        """Say how it stands."""
        used = self.used
        if self._reached is not None:
            name = self._reached
            return f"the run's budget of {self.limits[name]:g} {name} is used up ({used[name]:g} {name} by now)"
        stands = [f"{used[name]:g} of {limit:g} {name}" for name, limit in self.limits.items()]
        return f"budget: {', '.join(stands) or 'no limits'}"

    def _look(self) -> Limit | None:
        """Return the limit that is reached just now. In the lock."""
        if self._reached is not None:
            return None
        for name, limit in self.limits.items():
            if (self._elapsed() if name == "seconds" else self._used[name]) >= limit:
                self._reached = name
                return name
        return None

    def _elapsed(self) -> float:
        return self._earlier_seconds + (0.0 if self._began is None else self._clock() - self._began)

    def _tell(self, reached: Limit | None) -> None:
        if reached is not None:
            for listener in tuple(self._listeners):
                listener(reached)
