"""Queries as SQL: the same answer as `lightning_core.store.query.select` gives, without reading everything."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from lightning_core.store.codec import dumped
from lightning_core.store.query import Condition, Query

_IDS = ("rollout_id", "span_id")


def where(query: Query, always: str, parameters: list[Any], *, table: str) -> str:
    """Return the text after WHERE.

    Args:
        query: Its conditions are on columns of the table.
        always: A condition that holds for all that is asked for.
        parameters: Those of `always`; those of the query are added.
        table: The table of the columns.
    """
    if not query.conditions:
        return always
    names_rows = _names_rows(query)
    parts = []
    for condition in query.conditions:
        # The plus keeps SQLite from looking at all of one status, say, where the wanted ids are known.
        plus = "+" if names_rows and condition.field not in _IDS else ""
        parts.append(_condition(condition, parameters, f"{plus}{table}"))
    return f"{always} AND ({f' {query.logic} '.join(parts)})"


def order_and_page(query: Query, parameters: list[Any], *, table: str, insertion: str, is_sorted: bool = False) -> str:
    """Return the text after the conditions; the page's bounds are added to the parameters.

    None sorts before everything. Where the sort field is equal, the order of insertion decides, in either direction.
    With `is_sorted`, SQLite sorts all that matches, rather than looking at everything in this order.
    """
    # The plus keeps SQLite from looking at everything in this order, where all that matches is wanted, or is named, or
    # a text is looked for, which is done in the index that has it.
    is_search = any(condition.test == "contains" for condition in query.conditions)
    is_sorted = is_sorted or is_search or _names_rows(query) or bool(query.conditions and is_whole(query))
    plus = "+" if is_sorted else ""
    by = f"{plus}{table}.{query.sort_by} {query.sort_order}, " if query.sort_by is not None else ""
    parameters += [query.limit, query.offset]
    return f"ORDER BY {by}{plus}{table}.{insertion} LIMIT ? OFFSET ?"


def is_whole(query: Query) -> bool:
    """Whether the page holds everything that matches."""
    return query.limit == -1 and query.offset == 0


def _names_rows(query: Query) -> bool:
    """Whether all that matches is named by its id."""
    return query.logic == "and" and any(each.test == "in" and each.field in _IDS for each in query.conditions)


def _condition(condition: Condition, parameters: list[Any], table: str) -> str:
    column = f"{table}.{condition.field}"
    if condition.test == "is":
        parameters.append(condition.value)
        return f"{column} = ?"
    if condition.test == "contains":
        parameters.append(condition.value)
        return f"instr({column}, ?) > 0"
    values = [value for value in condition.value if isinstance(value, str)]
    if len(values) == 1:  # so that an index on the column and the order of the rows can be used
        parameters.append(values[0])
        return f"{column} = ?"
    parameters.append(dumped(values).decode())
    return f"{column} IN (SELECT value FROM json_each(?))"


# How many rollouts match, and where their pages begin, without looking at those before: by the table `tally`

_BITS = 12
"""How many bits of a rollout's number are not part of its block's."""

_FEW = 1 << _BITS


class Page(NamedTuple):
    """The rollouts that a page is among, and how many of them come before it."""

    total: int
    """How many match on all pages."""
    always: str = "run = ?"
    """The condition that they meet; its first parameter is the run."""
    bounds: tuple[float, ...] = ()
    """Its other parameters."""
    offset: int = 0
    are_few: bool = False
    """Whether they are found by the query's conditions, and then sorted."""


class _Block(NamedTuple):
    """The matches in one block, in the query's order."""

    number: int
    rollouts: int
    low: float
    """None of them comes before."""
    high: float


def find_page(execute: Callable[..., Any], run: int, query: Query) -> Page | None:
    """Return where a page is, or None where that is not known: its conditions are not on the status and the mode."""
    if any(condition.field not in ("status", "mode") for condition in query.conditions):
        return None
    parameters: list[Any] = [run]
    matching = where(query, "run = ?", parameters, table="tally")
    rows = execute(
        f"SELECT block, sum(rollouts), min(earliest), max(latest) FROM tally WHERE {matching} AND rollouts > 0 "
        "GROUP BY block ORDER BY block",
        parameters,
    ).fetchall()
    total = sum(rollouts for _, rollouts, _, _ in rows)
    if query.offset >= total or (query.conditions and total <= _FEW) or query.sort_by not in (None, "start_time"):
        return Page(total, offset=query.offset, are_few=total <= _FEW)
    if query.sort_by is None:
        blocks = [_Block(each, rollouts, each << _BITS, (each + 1 << _BITS) - 1) for each, rollouts, _, _ in rows]
        before, first, last = _cut(blocks, query)
        # The plus keeps SQLite from an index that has to be sorted; that of a status is in the order of insertion.
        by_status = query.logic == "and" and any(condition.field == "status" for condition in query.conditions)
        always = f"{'' if by_status else '+'}rollout.run = ? AND rollout.rollout BETWEEN ? AND ?"
        return Page(total, always, (first.low, last.high), query.offset - before)
    is_up = query.sort_order == "asc"
    sign = 1 if is_up else -1
    blocks = [_Block(row[0], row[1], *sorted((sign * row[2], sign * row[3]))) for row in rows[::sign]]
    before, first, last = _cut(blocks, query)
    begin, end = sorted((sign * first.low, sign * last.high))
    if before:
        # Of those that start at this very moment, some may be in the blocks that are skipped.
        test, edge = ("<", first.number << _BITS) if is_up else (">=", first.number + 1 << _BITS)
        parameters = [run, begin if is_up else end, edge]
        always = f"run = ? AND rollout.start_time = ? AND rollout.rollout {test} ?"
        tied = f"SELECT count(*) FROM rollout WHERE {where(query, always, parameters, table='rollout')}"
        before -= execute(tied, parameters).fetchone()[0]
    return Page(total, "run = ? AND rollout.start_time BETWEEN ? AND ?", (begin, end), query.offset - before)


def _cut(blocks: list[_Block], query: Query) -> tuple[int, _Block, _Block]:
    """Return how many matches come before a page at least, and the first and the last block that may have a part of it.

    The bounds of these two hold for all blocks in between, too.
    """
    end = float("inf") if query.limit == -1 else query.offset + query.limit
    highest = list(accumulate((block.high for block in blocks), max))
    lowest = list(accumulate((block.low for block in reversed(blocks)), min))[::-1]
    count, before, first = 0, 0, 0
    for place in range(len(blocks)):
        if place == 0 or highest[place - 1] <= lowest[place]:  # all blocks before end where the others begin
            if count >= end:
                return (
                    before,
                    blocks[first]._replace(low=lowest[first]),
                    blocks[place]._replace(high=highest[place - 1]),
                )
            if count <= query.offset:
                before, first = count, place
        count += blocks[place].rollouts
    return before, blocks[first]._replace(low=lowest[first]), blocks[-1]._replace(high=highest[-1])
