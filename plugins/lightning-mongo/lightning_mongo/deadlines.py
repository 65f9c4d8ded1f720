"""When the next record of each run is due, as far as this process knows."""

import threading
import time
from collections import defaultdict
from typing import NamedTuple

FRESH_SECONDS = 0.25
"""How late the deadlines may be seen that others write; what this process writes is known at once."""


class _Known(NamedTuple):
    at: float | None
    asked: float
    """When the database was asked, by the monotonic clock."""


class Question:
    """The database is being asked when a run's next record is due; meanwhile earlier deadlines may be written."""

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.written: float | None = None


class Deadlines:
    """A time for each run before which nothing is due. Any thread may ask.

    Every request to a store asks what is due, and hardly ever is anything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._questions: defaultdict[str, list[Question]] = defaultdict(list)

    def known(self, run_id: str) -> tuple[bool, float | None]:
        """Return whether it is known when the next record is due, and when; None for never."""
        known = self._known.get(run_id)
        if known is None or time.monotonic() - known.asked > FRESH_SECONDS:
            return False, None
        return True, known.at

    def written(self, run_id: str, deadline: float | None) -> None:
        """Note a deadline that a record has now."""
        if deadline is None:
            return
        with self._lock:
            known = self._known.get(run_id)
            if known is not None and (known.at is None or deadline < known.at):
                self._known[run_id] = known._replace(at=deadline)
            for question in self._questions.get(run_id, ()):
                question.written = _earlier(question.written, deadline)

    def ask(self, run_id: str) -> Question:
        """Note that the database is about to be asked."""
        question = Question()
        with self._lock:
            self._questions[run_id].append(question)
        return question

    def answered(self, run_id: str, question: Question, *, at: float | None, failed: bool = False) -> None:
        """Note what the database said."""
        with self._lock:
            self._questions[run_id].remove(question)
            if not self._questions[run_id]:
                del self._questions[run_id]
            if not failed:
                self._known[run_id] = _Known(_earlier(at, question.written), question.asked)


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
