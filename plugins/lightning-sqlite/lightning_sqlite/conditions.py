"""Queries as SQL: the same answer as `lightning_core.store.query.select` gives, without reading everything."""

from typing import Any

from lightning_core.store.codec.spans import dumped
from lightning_core.store.query import Condition, Query


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
    parts = [_condition(condition, parameters, table) for condition in query.conditions]
    return f"{always} AND ({f' {query.logic} '.join(parts)})"


def order_and_page(query: Query, parameters: list[Any], *, table: str, insertion: str) -> str:
    """Return the text after the conditions; the page's bounds are added to the parameters.

    None sorts before everything. Where the sort field is equal, the order of insertion decides, in either direction.
    """
    by = f"{table}.{query.sort_by} {query.sort_order}, " if query.sort_by is not None else ""
    parameters += [query.limit, query.offset]
    return f"ORDER BY {by}{table}.{insertion} LIMIT ? OFFSET ?"


def is_whole(query: Query) -> bool:
    """Whether the page holds everything that matches."""
    return query.limit == -1 and query.offset == 0


def _condition(condition: Condition, parameters: list[Any], table: str) -> str:
    column = f"{table}.{condition.field}"
    if condition.test == "is":
        parameters.append(condition.value)
        return f"{column} = ?"
    if condition.test == "contains":
        parameters.append(condition.value)
        return f"instr({column}, ?) > 0"
    parameters.append(dumped([value for value in condition.value if isinstance(value, str)]).decode())
    return f"{column} IN (SELECT value FROM json_each(?))"
