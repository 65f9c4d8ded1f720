"""The writer's transaction, and what it knows of the runs."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from lightning_core.errors import LightningError
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store.backend import Change, Document, DocumentKind

K = TypeVar("K")
V = TypeVar("V")


class Cached(Generic[K, V]):
    """What the writer knows without asking the database.

    Only the writer's thread changes it. Other threads may look at what is committed, and see what the newest finished
    commit left, never something that is not yet acknowledged.

    Args:
        limit: How many values are kept; those that were not written for longest are forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._committed: OrderedDict[K, V] = OrderedDict()
        self._staged: dict[K, V | None] = {}
        self._emptied = False

    def committed(self, key: K) -> V | None:
        """Return the committed value; None where it is not known here. Any thread may ask."""
        return self._committed.get(key)

    def get(self, key: K) -> V | None:
        """Return the value as the open transaction has it; None where it is not known here."""
        if key in self._staged:
            return self._staged[key]
        return None if self._emptied else self._committed.get(key)

    def set(self, key: K, value: V) -> None:
        """Note a value that the open transaction read or wrote."""
        self._staged[key] = value

    def forget(self, key: K) -> None:
        """Ask the database the next time."""
        self._staged[key] = None

    def forget_all(self) -> None:
        """Ask the database for everything."""
        self._staged.clear()
        self._emptied = True

    def commit(self) -> None:
        """Publish the effects of the transaction."""
        if self._emptied:
            self._committed.clear()
        for key, value in self._staged.items():
            if value is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = value
                self._committed.move_to_end(key)
        while len(self._committed) > self._limit:
            self._committed.popitem(last=False)
        self.roll_back()

    def roll_back(self) -> None:
        """Forget what the transaction did."""
        self._staged.clear()
        self._emptied = False


_ROWS_AT_ONCE = (32, 16, 8, 4, 2, 1)
"""So that one call of SQLite, during which other threads run, writes many rows, with few different statements."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run's number in the database, and how much it has."""

    number: int
    rollouts: int = 0
    attempts: int = 0
    spans: int = 0


class Row(NamedTuple):
    """A record, its number in the database, and its place in the queue."""

    record: RolloutRecord
    number: int
    ticket: int | None


class Earliest(NamedTuple):
    """A time before which no record of a run is due, None when there is none."""

    at: float | None


class LatestKey(NamedTuple):
    """The key of the document written last, None when there is none."""

    key: str | None


class Stored(NamedTuple):
    """A document and its number in the database."""

    number: int
    document: Document


class Session:
    """The connection, the caches over it, and what a commit makes known. It belongs to the writer's thread.

    Args:
        connection: Without an open transaction.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        self._connection = connection
        self.rows: Cached[tuple[str, str], Row] = Cached(5_000)
        self.runs: Cached[str, Run] = Cached(1_000)
        self.earliest: Cached[str, Earliest] = Cached(1_000)
        self.last_sequence_ids: Cached[tuple[int, int], int] = Cached(5_000)
        self.documents: Cached[tuple[str, DocumentKind, str], Stored] = Cached(10_000)
        self.latest: Cached[tuple[str, DocumentKind], LatestKey] = Cached(1_000)
        self.sources: Cached[tuple[int, bytes], int] = Cached(1_000)
        self._caches = [each for each in vars(self).values() if isinstance(each, Cached)]
        self._changed_runs: dict[str, Run] = {}
        self._changes: list[Change] = []
        # Numbers given in vain are not given again: a gap means nothing.
        self._last = {
            name: connection.execute(f"SELECT coalesce(max({name}), 0) FROM {table}").fetchone()[0]
            for table, name in (("rollout", "rollout"), ("rollout", "ticket"), ("document", "written"))
        }

    def transact(self, works: Sequence[Callable[[], Any]]) -> tuple[list[Any], list[Change]]:
        """Carry out several pieces of work in one transaction.

        Returns:
            What each returned, or the exception of one that raised before it wrote anything; and the changes that
            listeners have to be told of.

        Raises:
            Exception: When one raised after it had written, or the commit failed: then nothing at all was written.
        """
        outcomes: list[Any] = []
        try:
            self.execute("BEGIN IMMEDIATE")
            for work in works:
                before = self._connection.total_changes
                try:
                    outcomes.append(work())
                except (LightningError, ValueError, OverflowError) as exc:
                    if self._connection.total_changes != before:
                        raise
                    outcomes.append(exc)
            self._write_counts()
            self.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        for cache in self._caches:
            cache.commit()
        changes, self._changes = self._changes, []
        return outcomes, changes

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")
        for cache in self._caches:
            cache.roll_back()
        self._changed_runs, self._changes = {}, []

    def next_number(self, of: str) -> int:
        """Return the next `rollout`, `ticket` or `written`."""
        self._last[of] += 1
        number: int = self._last[of]
        return number

    def find_run(self, run_id: str) -> Run | None:
        """Return the run, None where nothing was ever written of it."""
        run = self.runs.get(run_id)
        if run is None:
            row = self.execute("SELECT run, rollouts, attempts, spans FROM run WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                return None
            run = Run(*row)
            self.runs.set(run_id, run)
        return run

    def all_runs(self) -> list[str]:
        """Return the runs of which anything was written, in the order of their first writes."""
        return [run_id for (run_id,) in self.execute("SELECT run_id FROM run ORDER BY run").fetchall()]

    def run(self, run_id: str) -> Run:
        """Return the run, a new one where there is none."""
        run = self.find_run(run_id)
        if run is None:
            number = self.execute("INSERT INTO run VALUES (NULL, ?, 0, 0, 0)", (run_id,)).lastrowid
            assert number is not None
            run = Run(number)
            self.runs.set(run_id, run)
        return run

    def count(self, run_id: str, *, rollouts: int = 0, attempts: int = 0, spans: int = 0) -> None:
        """Add to what the run has."""
        run = self.run(run_id)
        if rollouts or attempts or spans:
            run = replace(
                run, rollouts=run.rollouts + rollouts, attempts=run.attempts + attempts, spans=run.spans + spans
            )
            self.runs.set(run_id, run)
            self._changed_runs[run_id] = run

    def forget_run(self, run_id: str) -> None:
        """Forget a run that was deleted, and with it whatever is known of others: that can be read again."""
        self._changed_runs.pop(run_id, None)
        self._write_counts()
        for cache in self._caches:
            cache.forget_all()

    def _write_counts(self) -> None:
        for run in self._changed_runs.values():
            self.execute(
                "UPDATE run SET rollouts = ?, attempts = ?, spans = ? WHERE run = ?",
                (run.rollouts, run.attempts, run.spans, run.number),
            )
        self._changed_runs = {}

    def announce(self, change: Change) -> None:
        """Tell the listeners once the transaction is committed."""
        self._changes.append(change)

    def insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, in their order, with a value for each column of the table."""
        at = 0
        for size in _ROWS_AT_ONCE:
            while len(rows) - at >= size:
                places = f"({','.join('?' * len(rows[0]))})"
                self.execute(
                    f"INSERT INTO {table} VALUES {','.join([places] * size)}",
                    [value for row in rows[at : at + size] for value in row],
                )
                at += size
