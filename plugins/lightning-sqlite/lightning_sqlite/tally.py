"""How many rollouts match, and where their pages begin, without looking at those before: by the table `tally`."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from lightning_core.store.query import Query
from lightning_sqlite import conditions

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
    matching = conditions.where(query, "run = ?", parameters, table="tally")
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
        tied = f"SELECT count(*) FROM rollout WHERE {conditions.where(query, always, parameters, table='rollout')}"
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
