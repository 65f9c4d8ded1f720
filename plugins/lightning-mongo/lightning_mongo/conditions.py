"""Queries as MongoDB's filters: the same answer as `lightning_core.store.query.select` gives."""

import asyncio
from collections.abc import Callable
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from lightning_core.store.query import Condition, Query

MAX_COUNTED = 100_000
"""Up to which totals of pages are exact."""

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

    All of them are counted for a limit of 0; else see `MAX_COUNTED`.

    Args:
        collection: Where they are.
        query: Which are asked for.
        always: A condition that holds for all that is asked for.
        field: What the fields are called there.
        projection: The fields of the answer.
    """
    wanted = matching(query, always, field)

    async def read() -> list[dict[str, Any]]:
        limit, order = max(query.limit, 0), ordered(query, field)
        cursor = collection.find(wanted, projection, sort=order, skip=query.offset, limit=limit, allow_disk_use=True)
        return await cursor.to_list()

    if query.limit == 0:
        return [], await counted(collection, wanted, 0)
    if query.limit == -1 and query.offset == 0:
        documents = await read()
        return documents, len(documents)
    # One more than up to this page's end, so that who reads page after page sees that there is another.
    most = max(MAX_COUNTED, query.offset + max(query.limit, 0) + 1)
    documents, total = await asyncio.gather(read(), counted(collection, wanted, most))
    return documents, max(total, query.offset + len(documents) if documents else 0)


async def counted(collection: AsyncCollection[dict[str, Any]], wanted: dict[str, Any], most: int = MAX_COUNTED) -> int:
    """Return how many documents match, at most so many; 0 for all of them.

    By the keys of an index alone, which `count_documents` does more slowly.
    """
    done = await collection.database.command("count", collection.name, query=wanted, limit=most)
    return int(done["n"])


def ordered(query: Query, field: Fields) -> list[tuple[str, int]]:
    """Return how to sort.

    None comes before everything. Where the sort field is equal, the order of insertion decides, in either direction.
    """
    order = [] if query.sort_by is None else [(field(query.sort_by), 1 if query.sort_order == "asc" else -1)]
    return [*order, ("number", 1)]


def _condition(condition: Condition, field: Fields) -> dict[str, Any]:
    name = field(condition.field)
    if condition.test == "is":
        return {name: {"$eq": condition.value}}
    if condition.test == "in":
        return {name: {"$in": [value for value in condition.value if isinstance(value, str)]}}
    # Not a regular expression: a text may have any character. What is null contains nothing, and sorts before 0.
    place = {"$indexOfBytes": [f"${name}", {"$literal": condition.value}]}
    return {"$expr": {"$gte": [place, 0]}}
