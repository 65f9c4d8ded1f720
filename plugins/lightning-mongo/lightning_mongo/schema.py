"""The collections, what their indexes are for, and how a database is known to be ours."""

from typing import Any

from bson import MaxKey, MinKey
from pymongo import IndexModel
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError, OperationFailure

from lightning_mongo.errors import Address, UnusableDatabase

VERSION = 1
"""Of what is written below; a released one is never changed."""

SCHEMA = "lightning.schema"
"""One document, which says the version."""
ROLLOUTS = "lightning.rollouts"
SPANS = "lightning.spans"
DOCUMENTS = "lightning.documents"
DELETIONS = "lightning.deletions"
"""Which rollouts were deleted lately: a document that is gone cannot say so itself."""

REQUESTS = "lightning.requests"
"""Those that a rollout or a document, the owner, has no more room for."""

DELETIONS_KEPT_SECONDS = 3600

_RUN = "_id.run"


def _index(name: str, *keys: str, **options: Any) -> IndexModel:
    return IndexModel([(key, 1) for key in keys], name=name, **options)


def _of_those_with(field: str) -> dict[str, Any]:
    return {"partialFilterExpression": {field: {"$exists": True}}}


INDEXES: dict[str, list[IndexModel]] = {
    ROLLOUTS: [
        # With all that is counted and that pages are found by, so that neither needs the documents.
        _index("numbered", _RUN, "number", "status", "mode", "attempts", "start_time", "expires"),
        _index("of_status", _RUN, "status", "number", "start_time", "mode"),
        _index("queued", _RUN, "ticket", **_of_those_with("ticket")),
        _index("due", _RUN, "deadline", **_of_those_with("deadline")),
        _index("written", _RUN, "changed", "number"),
        # Unique, so that a request that two servers carry out at the same time claims once.
        _index("claimed", _RUN, "claims.request", "claims.place", unique=True, **_of_those_with("claims")),
        _index("expired", "expires", expireAfterSeconds=0, sparse=True),
    ],
    SPANS: [
        _index("numbered", _RUN, "number"),
        _index("expired", "expires", expireAfterSeconds=0, sparse=True),
    ],
    DOCUMENTS: [_index("latest", _RUN, "_id.kind", "changed")],
    REQUESTS: [_index("in_run", _RUN), _index("expired", "expires", expireAfterSeconds=0)],
    DELETIONS: [
        _index("changed", _RUN, "changed"),
        _index("expired", "at", expireAfterSeconds=DELETIONS_KEPT_SECONDS),
    ],
}


async def prepare(database: AsyncDatabase[dict[str, Any]], address: Address) -> None:
    """Check the version, and make what is missing. Nothing is written into a database of a newer version.

    Raises:
        UnusableDatabase: When it is of a newer version, or has other things under our names.
    """
    schema = database[SCHEMA]
    record = await schema.find_one({"_id": "schema"})
    version = VERSION if record is None else record.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise UnusableDatabase(
            f"database {database.name!r} at {address} is of version {version!r}, and this lightning-mongo knows "
            f"{VERSION}; upgrade lightning-mongo, or name another database"
        )
    if record is None:
        try:
            await schema.insert_one({"_id": "schema", "version": VERSION})
        except DuplicateKeyError:
            return await prepare(database, address)  # another process was first
    try:
        for collection, indexes in INDEXES.items():
            await database[collection].create_indexes(indexes)
    except OperationFailure as exc:
        if exc.code in (85, 86):  # another index has the name, or the keys
            raise UnusableDatabase(
                f"database {database.name!r} at {address} has another index in the place of one of ours; drop it, and "
                f"it is made anew: {exc}"
            ) from exc
        raise
    return None


def of(key: str, rollout_id: str | None = None, attempt_id: str | None = None) -> dict[str, Any]:
    """Return the condition on `_id`.

    Args:
        key: The run, as it is called in the database.
        rollout_id: One of its rollouts; None for all.
        attempt_id: One of its attempts; None for all.
    """
    known = {"rollout": rollout_id, "attempt": attempt_id, "span": None}
    return {f"${test}": {"run": key, **_ends(known, bound)} for test, bound in (("gte", MinKey()), ("lte", MaxKey()))}


def _ends(known: dict[str, str | None], bound: Any) -> dict[str, Any]:
    return {name: bound if value is None else value for name, value in known.items()}
