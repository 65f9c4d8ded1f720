"""Spans in the database, and their numbers."""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_core.errors import NotFound
from lightning_core.store.codec import EncodedSpan, SpanReader, dumped, encoded
from lightning_core.store.query import Query, select
from lightning_core.types import Span
from lightning_sqlite import conditions
from lightning_sqlite.rollouts import RolloutPart
from lightning_sqlite.session import Row
from lightning_sqlite.writer import in_the_thread

_COLUMNS = (
    "span.attempt, span.span_id, span.sequence_id, span.trace_id, span.parent_id, span.name, "
    "span.start_time, span.end_time, source.body, span.body"
)
"""Of `span JOIN source USING (source)`: the attempt's number, and what makes an `EncodedSpan`."""

_OWN_COLUMNS = {"sequence_id", "trace_id", "span_id", "parent_id", "name", "start_time", "end_time", None}
"""What the database can sort by."""


MIN_COMPRESSED = 16_384
"""How many bytes a body has at least that is compressed, as one of a call with thousands of token ids."""


class SpanPart(RolloutPart):
    """The spans of all runs."""

    @in_the_thread
    def append_spans(self, run_id: str, spans: Sequence[Span]) -> list[int | None]:
        """Keep spans of existing attempts, and number those whose `sequence_id` is 0.

        Raises:
            NotFound: When a rollout is gone.
        """
        numbers = self._numbers(run_id, ((span.rollout_id, span.attempt_id) for span in spans))
        encoded_spans = [
            (numbers[span.rollout_id, span.attempt_id], row) for span, row in zip(spans, encoded(spans), strict=True)
        ]
        by_attempt: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        for attempt, row in encoded_spans:
            by_attempt[attempt].append(row.span_id)
        last = {attempt: self._last_sequence_id(*attempt) for attempt in by_attempt}
        there = {
            attempt: self._present_spans(*attempt, span_ids) if last[attempt] else set()
            for attempt, span_ids in by_attempt.items()
        }
        rows: list[tuple[Any, ...]] = []
        stored: list[int | None] = []
        for attempt, span in encoded_spans:
            if span.span_id in there[attempt]:
                stored.append(None)
                continue
            there[attempt].add(span.span_id)
            sequence_id = span.sequence_id or last[attempt] + 1
            last[attempt] = max(last[attempt], sequence_id)
            _, _, trace_id, parent_id, name, start_time, end_time, source, body = span
            identity = (span.span_id, sequence_id, trace_id, parent_id, name)
            rows.append((None, *attempt, *identity, start_time, end_time, self._source(run_id, source), _packed(body)))
            stored.append(sequence_id)
        self._session.insert("span", rows)
        for attempt, sequence_id in last.items():
            self._session.last_sequence_ids.set(attempt, sequence_id)
        if rows:
            self._session.count(run_id, spans=len(rows))
        return stored

    @in_the_thread
    def replace_spans(self, run_id: str, spans: Sequence[Span]) -> None:
        """Write spans in place of those that are kept of the same rollout, attempt and id.

        They move behind all others: SQLite has no other use for the room in a page whose rows became smaller.
        """
        for span, written in zip(spans, encoded(spans), strict=True):
            row = self._row(run_id, span.rollout_id)
            if row is not None:
                content = (_packed(written.body), self._source(run_id, written.source))
                place = (row.number, _number_of(row, span.attempt_id), span.span_id)
                self._execute(
                    "UPDATE span SET span = (SELECT max(span) + 1 FROM span), body = ?, source = ? "
                    "WHERE rollout = ? AND attempt = ? AND span_id = ?",
                    (*content, *place),
                )

    @in_the_thread
    def reserve_sequence_ids(self, run_id: str, attempts: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next sequence id of each `(rollout_id, attempt_id)`."""
        numbers = self._numbers(run_id, attempts)
        reserved = []
        last: dict[tuple[int, int], int] = {}
        for ids in attempts:
            attempt = numbers[ids]
            last[attempt] = last.get(attempt, self._last_sequence_id(*attempt)) + 1
            reserved.append(last[attempt])
        for attempt, sequence_id in last.items():
            self._execute(
                "INSERT INTO reserved VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET last_sequence_id = excluded.last_sequence_id",
                (*attempt, sequence_id),
            )
            self._session.last_sequence_ids.set(attempt, sequence_id)
        return reserved

    @in_the_thread
    def find_spans(self, run_id: str, rollout_id: str, attempt_id: str | None, query: Query) -> tuple[list[Span], int]:
        """Return one page of a rollout's or an attempt's spans, and how many match."""
        row = self._row(run_id, rollout_id)
        if row is None:
            return [], 0
        attempt_ids = {attempt.sequence_id: attempt.attempt_id for attempt in row.record.attempts}
        always, parameters = "span.rollout = ?", [row.number]
        if attempt_id is not None:
            always += " AND span.attempt = ?"
            parameters.append(_number_of(row, attempt_id))
        reader = SpanReader(rollout_id)

        def decoded(columns: Sequence[Any]) -> Span:
            span = EncodedSpan._make((*columns[1:-1], _unpacked(columns[-1])))
            return reader.decoded(attempt_ids[columns[0]], span)

        if query.sort_by not in _OWN_COLUMNS:
            everything = self._execute(
                f"SELECT {_COLUMNS} FROM span JOIN source USING (source) WHERE {always} ORDER BY span.span", parameters
            )
            return select([decoded(columns) for columns in everything.fetchall()], query)
        matching = conditions.where(query, always, parameters, table="span")
        total = None
        if not conditions.is_whole(query):
            (total,) = self._execute(f"SELECT count(*) FROM span WHERE {matching}", parameters).fetchone()
        page = conditions.order_and_page(query, parameters, table="span", insertion="span")
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM span JOIN source USING (source) WHERE {matching} {page}", parameters
        ).fetchall()
        spans = [decoded(columns) for columns in rows]
        return spans, len(spans) if total is None else total

    def _numbers(self, run_id: str, attempts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the numbers of rollout and attempt, by their ids.

        Raises:
            NotFound: When one of the rollouts is gone.
        """
        numbers: dict[tuple[str, str], tuple[int, int]] = {}
        for rollout_id, attempt_id in attempts:
            if (rollout_id, attempt_id) not in numbers:
                row = self._row(run_id, rollout_id)
                if row is None:
                    raise NotFound(f"run {run_id} has no rollout {rollout_id!r}")
                numbers[rollout_id, attempt_id] = (row.number, _number_of(row, attempt_id))
        return numbers

    def _last_sequence_id(self, rollout: int, attempt: int) -> int:
        known = self._session.last_sequence_ids.get((rollout, attempt))
        if known is None:
            (known,) = self._execute(
                "SELECT max(coalesce((SELECT max(sequence_id) FROM span WHERE rollout = ? AND attempt = ?), 0), "
                "coalesce((SELECT last_sequence_id FROM reserved WHERE rollout = ? AND attempt = ?), 0))",
                (rollout, attempt, rollout, attempt),
            ).fetchone()
            self._session.last_sequence_ids.set((rollout, attempt), known)
        return known

    def _present_spans(self, rollout: int, attempt: int, span_ids: Sequence[str]) -> set[str]:
        rows = self._execute(
            "SELECT span_id FROM span WHERE rollout = ? AND attempt = ? "
            "AND span_id IN (SELECT value FROM json_each(?))",
            (rollout, attempt, dumped(span_ids).decode()),
        ).fetchall()
        return {span_id for (span_id,) in rows}

    def _source(self, run_id: str, body: bytes) -> int:
        run = self._session.run(run_id).number
        number = self._session.sources.get((run, body))
        if number is None:
            row = self._execute("SELECT source FROM source WHERE run = ? AND body = ?", (run, body)).fetchone()
            if row is None:
                number = self._execute("INSERT INTO source VALUES (NULL, ?, ?)", (run, body)).lastrowid
                assert number is not None
            else:
                (number,) = row
            self._session.sources.set((run, body), number)
        return number


def _number_of(row: Row, attempt_id: str) -> int:
    return row.record.attempt(attempt_id).sequence_id


def _packed(body: bytes) -> bytes:
    # Level 1: higher ones take twice the time, or more, for a quarter of the size less.
    return zlib.compress(body, 1) if len(body) >= MIN_COMPRESSED else body


def _unpacked(body: bytes) -> bytes:
    # JSON begins with a brace, and what zlib makes with an "x".
    return zlib.decompress(body) if body.startswith(b"x") else body
