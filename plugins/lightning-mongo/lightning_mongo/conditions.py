"""Queries as MongoDB's filters: the same answer as `lightning_core.store.query.select` gives."""

from collections.abc import Callable
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from lightning_core.store.query import Condition, Query

Fields = Callable[[str], str]
"""From a field of the model to the one of the document."""


def matching(query: Query, always: dict[str, Any], field: Fields) -> dict[str, Any]:
    """Return a filter.

    Args:
        query: Its conditions are on fields of the document.
        always: A condition that holds for all that is asked for.
        field: What the fields are called there.
    """
    if not query.conditions:
        return always
    return {"$and": [always, {f"${query.logic}": [_condition(condition, field) for condition in query.conditions]}]}


async def page(
    collection: AsyncCollection[dict[str, Any]],
    query: Query,
    always: dict[str, Any],
    field: Fields,
    projection: dict[str, int],
) -> tuple[list[dict[str, Any]], int]:
    """Return one page of the documents that match, and how many match on all pages.

    None sorts before everything. Where the sort field is equal, the order of insertion decides, in either direction.
    """
    wanted = matching(query, always, field)
    is_whole = query.limit == -1 and query.offset == 0
    total = 0 if is_whole else await collection.count_documents(wanted)
    if query.limit == 0:
        return [], total
    order: list[tuple[str, int]] = [("number", 1)]
    if query.sort_by is not None:
        order.insert(0, (field(query.sort_by), 1 if query.sort_order == "asc" else -1))
    cursor = collection.find(wanted, projection, sort=order, skip=query.offset, allow_disk_use=True)
    found = await cursor.limit(max(query.limit, 0)).to_list()
    return found, len(found) if is_whole else total


def _condition(condition: Condition, field: Fields) -> dict[str, Any]:
    name = field(condition.field)
    if condition.test == "is":
        return {name: {"$eq": condition.value}}
    if condition.test == "in":
        return {name: {"$in": [value for value in condition.value if isinstance(value, str)]}}
    # Not a regular expression: a text may have any character. What is null contains nothing, and sorts before 0.
    place = {"$indexOfBytes": [f"${name}", {"$literal": condition.value}]}
    return {"$expr": {"$gte": [place, 0]}}
