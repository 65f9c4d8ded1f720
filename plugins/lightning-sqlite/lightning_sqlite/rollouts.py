"""Rollout records in the database: the queue, compare-and-set, deadlines, deletion."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning_core import lifecycle
from lightning_core.lifecycle import RolloutRecord
from lightning_core.store import codec
from lightning_core.store.backend import Change
from lightning_core.store.codec import dumped, kept, same_task, state, task
from lightning_core.store.query import Query
from lightning_sqlite import conditions
from lightning_sqlite.session import Earliest, Row
from lightning_sqlite.writer import SqlitePart, in_the_thread

COLUMNS = (
    "rollout.rollout, rollout_id, status, mode, resources_id, start_time, end_time, revision, ticket, state, task.body"
)
"""What `decoded` takes, of `rollout JOIN task USING (rollout)`."""


def decoded(run_id: str, row: Sequence[Any]) -> tuple[RolloutRecord, int, int | None]:
    """Return the record, its number and its ticket, of a row of `COLUMNS`."""
    number, *fields, revision, ticket, state, task = row
    return (
        codec.decoded(run_id, dict(zip(codec.COLUMNS, fields, strict=True)), revision, task=task, state=state),
        number,
        ticket,
    )


_FEW = 4_096
"""As many rollouts are sorted, rather than looked for among all in their order."""


def select(what: str, run: int, query: Query, *, is_sorted: bool = False) -> tuple[str, list[Any]]:
    """Return the statement that carries out a query, and its parameters.

    Args:
        what: `COLUMNS`, or else columns or an aggregate of `rollout` alone.
        run: The number of the run.
        query: Which rollouts, in which order.
        is_sorted: See `conditions.order_and_page`.
    """
    parameters: list[Any] = [run]
    matching = conditions.where(query, "run = ?", parameters, table="rollout")
    table = "rollout JOIN task USING (rollout)" if what == COLUMNS else "rollout"
    order = (
        ""
        if what.startswith("count")
        else conditions.order_and_page(query, parameters, table="rollout", insertion="rollout", is_sorted=is_sorted)
    )
    return f"SELECT {what} FROM {table} WHERE {matching} {order}", parameters


_CHANGING = ("status", "mode", "resources_id", "start_time", "end_time", "revision", "ticket", "deadline")


def _changing(row: Row) -> tuple[Any, ...]:
    """Return the columns of a row that may change, but for its state."""
    rollout = row.record.rollout
    values = (rollout.status, rollout.mode, rollout.resources_id, rollout.start_time, rollout.end_time)
    return (*values, row.record.revision, row.ticket, _deadline(row.record))


_OF_A_ROLLOUT = ("span", "reserved", "claim", "task", "rollout")
"""The tables that hold something of a rollout, by its number."""


class RolloutPart(SqlitePart):
    """The records of all runs."""

    async def get(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        """Return the record, or None when the run has none of this id."""
        self._writer.check_usable()
        row = self._session.rows.committed((run_id, rollout_id))
        return await self._read(run_id, rollout_id) if row is None else row.record

    @in_the_thread
    def _read(self, run_id: str, rollout_id: str) -> RolloutRecord | None:
        row = self._row(run_id, rollout_id)
        return None if row is None else row.record

    def _row(self, run_id: str, rollout_id: str) -> Row | None:
        """Return a record with its number and its ticket, or None when there is none."""
        row = self._session.rows.get((run_id, rollout_id))
        if row is None and (run := self._session.find_run(run_id)) is not None:
            columns = self._execute(
                f"SELECT {COLUMNS} FROM rollout JOIN task USING (rollout) WHERE run = ? AND rollout_id = ?",
                (run.number, rollout_id),
            ).fetchone()
            if columns is not None:
                row = self._noted(run_id, columns)
        return row

    @in_the_thread
    def insert(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """Add new records, in this order.

        Raises:
            InvalidRequest: When an input or metadata has a value that JSON cannot hold.
        """
        present: dict[tuple[str, str], RolloutRecord] = {}
        for run_id in dict.fromkeys(record.run_id for record in records):
            wanted = [record.rollout.rollout_id for record in records if record.run_id == run_id]
            present.update({(run_id, rollout_id): record for rollout_id, record in self._present(run_id, wanted)})
        new: list[Row] = []
        for record in records:
            key = (record.run_id, record.rollout.rollout_id)
            if key not in present:
                present[key] = kept(record, None)
                ticket = self._session.next_number("ticket") if record.rollout.status in lifecycle.QUEUED else None
                new.append(Row(present[key], self._session.next_number("rollout"), ticket))
        self._session.insert("task", [(row.number, task(row.record.rollout)) for row in new])
        self._session.insert("rollout", [self._columns(row) for row in new])
        for row in new:
            self._session.count(row.record.run_id, rollouts=1, attempts=len(row.record.attempts))
            self._written(row)
        return [present[record.run_id, record.rollout.rollout_id] for record in records]

    @in_the_thread
    def replace(self, old: RolloutRecord, new: RolloutRecord) -> bool:
        """Write `new` with the next revision if the record still has the revision of `old`."""
        row = self._row(old.run_id, old.rollout.rollout_id)
        if row is None or row.record.revision != old.revision:
            return False
        self._write(row, new)
        return True

    @in_the_thread
    def claim(
        self,
        run_id: str,
        limit: int,
        begin: Callable[[RolloutRecord], RolloutRecord],
        *,
        request_id: str | None = None,
    ) -> list[RolloutRecord]:
        """Take up to `limit` records from the head of the queue and write `begin(record)` for each."""
        run = self._session.find_run(run_id)
        if run is None:
            return []
        if request_id is not None:
            again = self._execute(
                "SELECT rollout_id FROM claim JOIN rollout USING (rollout) "
                "WHERE claim.run = ? AND request_id = ? ORDER BY position",
                (run.number, request_id),
            ).fetchall()
            if again:
                return [row.record for (rollout_id,) in again if (row := self._row(run_id, rollout_id)) is not None]
        head = self._execute(
            "SELECT rollout_id FROM rollout WHERE run = ? AND ticket IS NOT NULL ORDER BY ticket LIMIT ?",
            (run.number, limit),
        ).fetchall()
        rows = [row for (rollout_id,) in head if (row := self._row(run_id, rollout_id)) is not None]
        begun = [begin(row.record) for row in rows]
        written = [self._write(row, record) for row, record in zip(rows, begun, strict=True)]
        if request_id is not None:
            self._session.insert(
                "claim", [(run.number, request_id, position, row.number) for position, row in enumerate(rows)]
            )
        return written

    @in_the_thread
    def find(self, run_id: str, query: Query) -> tuple[list[RolloutRecord], int]:
        """Query records by fields of their rollout."""
        run = self._session.find_run(run_id)
        if run is None:
            return [], 0
        if conditions.is_whole(query):
            found = self._execute(*select(COLUMNS, run.number, query)).fetchall()
            return self._records(run_id, found), len(found)
        total = run.rollouts
        if query.conditions:
            (total,) = self._execute(*select("count(*)", run.number, query)).fetchone()
        if total <= query.offset or query.limit == 0:
            return [], total
        # The numbers first: what is skipped is only looked at in an index, as far as there is one.
        is_sorted = bool(query.conditions) and total <= _FEW
        statement, parameters = select("rollout.rollout", run.number, query, is_sorted=is_sorted)
        numbers = [number for (number,) in self._execute(statement, parameters).fetchall()]
        found = self._execute(
            f"SELECT {COLUMNS} FROM rollout JOIN task USING (rollout) "
            "WHERE rollout.rollout IN (SELECT value FROM json_each(?))",
            (dumped(numbers).decode(),),
        ).fetchall()
        by_number = {columns[0]: columns for columns in found}
        return self._records(run_id, [by_number[number] for number in numbers]), total

    async def due(self, run_id: str, now: float) -> list[RolloutRecord]:
        """Return the records whose deadline is not after `now`, the earliest first."""
        self._writer.check_usable()
        earliest = self._session.earliest.committed(run_id)
        if earliest is not None and (earliest.at is None or now < earliest.at):
            return []
        return await self._read_due(run_id, now)

    @in_the_thread
    def _read_due(self, run_id: str, now: float) -> list[RolloutRecord]:
        run = self._session.find_run(run_id)
        if run is None:
            return []
        found = self._execute(
            "SELECT rollout_id FROM rollout WHERE run = ? AND deadline <= ? ORDER BY deadline, rollout",
            (run.number, now),
        ).fetchall()
        self._find_earliest(run_id)
        return [row.record for (rollout_id,) in found if (row := self._row(run_id, rollout_id)) is not None]

    async def next_deadline(self, run_id: str) -> float | None:
        """Return a time before which no record is due."""
        self._writer.check_usable()
        earliest = self._session.earliest.committed(run_id)
        return await self._read_earliest(run_id) if earliest is None else earliest.at

    @in_the_thread
    def _read_earliest(self, run_id: str) -> float | None:
        return self._find_earliest(run_id)

    def _find_earliest(self, run_id: str) -> float | None:
        """Return when the first record of the run is due, and publish it."""
        run, at = self._session.find_run(run_id), None
        if run is not None:
            (at,) = self._execute(
                "SELECT min(deadline) FROM rollout WHERE run = ? AND deadline IS NOT NULL", (run.number,)
            ).fetchone()
        self._session.earliest.set(run_id, Earliest(at))
        return at

    @in_the_thread
    def delete_rollouts(self, run_id: str, rollout_ids: Sequence[str]) -> int:
        """Delete rollouts with their attempts and spans."""
        rows = [row for rollout_id in dict.fromkeys(rollout_ids) if (row := self._row(run_id, rollout_id)) is not None]
        for row in rows:
            deleted = {
                table: self._execute(f"DELETE FROM {table} WHERE rollout = ?", (row.number,)).rowcount
                for table in _OF_A_ROLLOUT
            }
            self._session.count(run_id, rollouts=-1, attempts=-len(row.record.attempts), spans=-deleted["span"])
            self._session.rows.forget((run_id, row.record.rollout.rollout_id))
            self._announce_deletion(run_id, row.record.rollout.rollout_id)
        return len(rows)

    @in_the_thread
    def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to a run."""
        run = self._session.find_run(run_id)
        if run is None:
            return
        deleted = self._execute("SELECT rollout_id FROM rollout WHERE run = ?", (run.number,)).fetchall()
        for table in _OF_A_ROLLOUT[:-1]:
            self._execute(
                f"DELETE FROM {table} WHERE rollout IN (SELECT rollout FROM rollout WHERE run = ?)", (run.number,)
            )
        for table in ("rollout", "source", "document", "request", "run"):
            self._execute(f"DELETE FROM {table} WHERE run = ?", (run.number,))
        self._session.forget_run(run_id)
        for (rollout_id,) in deleted:
            self._announce_deletion(run_id, rollout_id)

    def _records(self, run_id: str, found: Sequence[Sequence[Any]]) -> list[RolloutRecord]:
        """Return the records of rows of `COLUMNS`."""
        known = (self._session.rows.get((run_id, columns[1])) for columns in found)
        return [row.record if row else decoded(run_id, columns)[0] for row, columns in zip(known, found, strict=True)]

    def _present(self, run_id: str, rollout_ids: Sequence[str]) -> list[tuple[str, RolloutRecord]]:
        run = self._session.find_run(run_id)
        if run is None:
            return []
        found = self._execute(
            "SELECT rollout_id FROM rollout WHERE run = ? AND rollout_id IN (SELECT value FROM json_each(?))",
            (run.number, dumped(rollout_ids).decode()),
        ).fetchall()
        return [(rollout_id, row.record) for (rollout_id,) in found if (row := self._row(run_id, rollout_id))]

    def _write(self, row: Row, new: RolloutRecord) -> RolloutRecord:
        old = row.record
        record = kept(new, old)._replace(revision=old.revision + 1)
        ticket = None
        if record.rollout.status in lifecycle.QUEUED:
            ticket = self._session.next_number("ticket") if row.ticket is None else row.ticket
        written = Row(record, row.number, ticket)
        # A column that is named is written in its index, too, even when it stays the same.
        columns = {
            name: value
            for name, value, before in zip(_CHANGING, _changing(written), _changing(row), strict=True)
            if value != before
        }
        self._execute(
            f"UPDATE rollout SET {''.join(f'{name} = ?, ' for name in columns)}state = ? WHERE rollout = ?",
            (*columns.values(), state(record), row.number),
        )
        if not same_task(record.rollout, old.rollout):
            self._execute("UPDATE task SET body = ? WHERE rollout = ?", (task(record.rollout), row.number))
        if len(record.attempts) != len(old.attempts):
            self._session.count(record.run_id, attempts=len(record.attempts) - len(old.attempts))
        self._written(written)
        return record

    def _written(self, row: Row) -> None:
        """Note what follows from a record that was just written."""
        record = row.record
        self._session.rows.set((record.run_id, record.rollout.rollout_id), row)
        deadline = _deadline(record)
        if deadline is not None:
            known = self._session.earliest.get(record.run_id)
            if known is not None and (known.at is None or deadline < known.at):
                self._session.earliest.set(record.run_id, Earliest(deadline))
        self._session.announce(Change(record.run_id, record.rollout.rollout_id, record.rollout.status, deadline))

    def _columns(self, row: Row) -> tuple[Any, ...]:
        run, rollout = self._session.run(row.record.run_id).number, row.record.rollout
        return (row.number, run, rollout.rollout_id, *_changing(row), state(row.record))

    def _noted(self, run_id: str, columns: Sequence[Any]) -> Row:
        row = Row(*decoded(run_id, columns))
        self._session.rows.set((run_id, row.record.rollout.rollout_id), row)
        return row

    def _announce_deletion(self, run_id: str, rollout_id: str) -> None:
        self._session.announce(Change(run_id, rollout_id, None, None))


def _deadline(record: RolloutRecord) -> float | None:
    due = lifecycle.deadline(record)
    return None if due is None else due.at
