"""Queries as MongoDB's filters: the same answer as `lightning_core.store.query.select` gives."""

import asyncio
from collections.abc import Callable
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from lightning_core.store.query import Condition, Query

Fields = Callable[[str], str]
"""From a field of the model to the one of the document."""

_FAR = 1_000
"""Pages that skip as many are read from the end where that is nearer; others are read while their total is counted."""


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
    *,
    hint: str | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Return one page of the documents that match, and how many match on all pages.

    None sorts before everything. Where the sort field is equal, the order of insertion decides, in either direction.

    Args:
        collection: Where they are.
        query: Which are asked for.
        always: A condition that holds for all that is asked for.
        field: What the fields are called there.
        projection: The fields of the answer.
        hint: The index by which they are found and sorted; None for that which the server takes.
    """
    wanted = matching(query, always, field)
    order = [("number", 1)]
    if query.sort_by is not None:
        order.insert(0, (field(query.sort_by), 1 if query.sort_order == "asc" else -1))

    async def read(order: list[tuple[str, int]], skip: int, limit: int) -> list[dict[str, Any]]:
        cursor = collection.find(wanted, projection, sort=order, skip=skip, limit=limit, hint=hint, allow_disk_use=True)
        return await cursor.to_list()

    if query.limit == 0:
        return [], await counted(collection, wanted)
    if query.limit == -1 and query.offset == 0:
        found = await read(order, 0, 0)
        return found, len(found)
    if query.limit == -1 or query.offset < _FAR:
        skipping = read(order, query.offset, max(query.limit, 0))
        found, total = await asyncio.gather(skipping, counted(collection, wanted))
        return found, total
    # What comes or goes between the questions must not shift a page that is counted from the end.
    newest = await collection.find_one(always, {"number": 1}, sort=[("number", -1)])
    if newest is None:
        return [], 0
    wanted = {"$and": [wanted, {"number": {"$lte": newest["number"]}}]}
    total = await counted(collection, wanted)
    behind = total - query.offset - query.limit
    if 2 * behind < query.offset < total:  # backwards, a key takes up to twice the time
        backwards = [(name, -direction) for name, direction in order]
        found = await read(backwards, max(behind, 0), query.limit + min(behind, 0))
        if await counted(collection, wanted) == total:
            return found[::-1], total
    return await read(order, query.offset, query.limit), total


async def counted(collection: AsyncCollection[dict[str, Any]], wanted: dict[str, Any]) -> int:
    """Return how many documents match: by the keys of an index alone, which `count_documents` does more slowly."""
    done = await collection.database.command("count", collection.name, query=wanted)
    return int(done["n"])


def _condition(condition: Condition, field: Fields) -> dict[str, Any]:
    name = field(condition.field)
    if condition.test == "is":
        return {name: {"$eq": condition.value}}
    if condition.test == "in":
        return {name: {"$in": [value for value in condition.value if isinstance(value, str)]}}
    # Not a regular expression: a text may have any character. What is null contains nothing, and sorts before 0.
    place = {"$indexOfBytes": [f"${name}", {"$literal": condition.value}]}
    return {"$expr": {"$gte": [place, 0]}}
