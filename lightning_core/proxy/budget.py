"""A hard limit for a whole run: money, tokens, calls and time."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lightning_core.errors import BudgetExhausted, ConfigError

Limit = Literal["usd", "tokens", "calls", "seconds"]


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
        ConfigError: When a limit is no number above 0.
    """

    def __init__(
        self,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given: dict[Limit, float | None] = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
        for name, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ConfigError(f"budget: {name} is {value!r}; it is a number above 0, or left out")
        self.limits: Mapping[Limit, float] = {
            name: value for name, value in given.items() if value is not None and math.isfinite(value)
        }
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._used: dict[Limit, float] = {"usd": 0.0, "tokens": 0, "calls": 0}
        self._unpriced_calls = 0
        self._reached: Limit | None = None
        self._listeners: list[Callable[[Limit], None]] = []

    @classmethod
    def of(cls, spec: "Budget | Mapping[str, Any] | None") -> "Budget | None":
        """Return a budget of whatever says one: `{"usd": 5, "seconds": 3600}`; None for none.

        Raises:
            ConfigError: Names what a budget does not have.
        """
        if spec is None or isinstance(spec, Budget):
            return spec
        if not isinstance(spec, Mapping):
            raise ConfigError(f"budget is a {type(spec).__name__}; it has usd, tokens, calls and seconds, or some")
        unknown = [name for name in spec if name not in ("usd", "tokens", "calls", "seconds")]
        if unknown:
            raise ConfigError(f"budget has no limit {unknown[0]!r}; it has: usd, tokens, calls, seconds")
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
            elapsed = 0.0 if self._began is None else self._clock() - self._began
            return {**self._used, "seconds": elapsed}

    @property
    def unpriced_calls(self) -> int:
        """How many calls count nothing in `usd`, because nobody said what they cost."""
        return self._unpriced_calls

    def start(self) -> None:
        """Let the time begin. The first call does it, too; twice is as once."""
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

    def start_call(self) -> None:
        """Count a call that is about to start.

        Raises:
            BudgetExhausted: When a limit is reached. It must not start.
        """
        self.start()
        with self._lock:
            told = self._look()
            if self._reached is None:
                self._used["calls"] += 1
        self._tell(told)
        if self._reached is not None:
            raise BudgetExhausted(self.in_words())

    def end_call(self, *, tokens: int = 0, usd: float | None = None) -> None:
        """Count what a call used.

        Args:
            tokens: Of its prompt and its answer.
            usd: What it cost; None where nobody knows.
        """
        with self._lock:
            self._used["tokens"] += tokens
            self._used["usd"] += usd or 0.0
            self._unpriced_calls += usd is None
            told = self._look()
        self._tell(told)

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
        elapsed = 0.0 if self._began is None else self._clock() - self._began
        for name, limit in self.limits.items():
            if (elapsed if name == "seconds" else self._used[name]) >= limit:
                self._reached = name
                return name
        return None

    def _tell(self, reached: Limit | None) -> None:
        if reached is not None:
            for listener in tuple(self._listeners):
                listener(reached)
