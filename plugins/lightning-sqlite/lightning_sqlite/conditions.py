"""Queries as SQL: the same answer as `lightning_core.store.query.select` gives, without reading everything."""

from typing import Any

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
