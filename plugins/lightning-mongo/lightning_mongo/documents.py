"""Small documents, and requests that records have no more room for. In the database's event loop only."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pymongo import InsertOne, UpdateOne

from lightning_core.concurrency import Batcher
from lightning_core.lifecycle import Request
from lightning_core.store.backend import REQUEST_SECONDS, Document, DocumentKind
from lightning_core.store.codec.records import requests_of
from lightning_core.store.codec.spans import dumped, loaded
from lightning_mongo import schema
from lightning_mongo.database import Database
from lightning_mongo.records import NOW, SERVER_TIME, check_size, expires_in

_PROJECTION = {"value": 1, "revision": 1, "requests": 1}

_Key = tuple[str, DocumentKind, str]
"""A run, a kind and a key."""


class _Put(NamedTuple):
    key: _Key
    value: bytes
    revision: int
    """What it has to be before."""
    requests: bytes


class Documents:
    """The documents of all runs of a partition.

    Args:
        database: The open database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gets: Batcher[_Key, Document | None] = Batcher(self._get_all)
        self._puts: Batcher[_Put, bool] = Batcher(self._put_all)
        self._latest: Batcher[tuple[str, DocumentKind], str | None] = Batcher(self._latest_all)

    async def put(
        self, run_id: str, kind: DocumentKind, key: str, value: bytes, revision: int, requests: tuple[Request, ...]
    ) -> bool:
        """Write a document if it has this revision, 0 standing for none; return whether it had."""
        check_size(f"{kind} {key!r}", len(value))
        return await self._puts.ask(_Put((run_id, kind, key), value, revision, dumped(requests)))

    async def get(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        return await self._gets.ask((run_id, kind, key))

    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        return await self._latest.ask((run_id, kind))

    async def all(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        wanted = {"_id.run": self._database.run_key(run_id), "_id.kind": kind}
        documents = self._database.collection(schema.DOCUMENTS)
        found = await self._database.retried(
            lambda: documents.find(wanted, _PROJECTION, sort=[("number", 1)], allow_disk_use=True).to_list()
        )
        return [_decoded(document) for document in found]

    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], wanted: str
    ) -> Request | None:
        """Keep requests, and return the one of the wanted id that was kept before, or None. The server forgets them."""
        key, expires = self._database.run_key(run_id), expires_in(REQUEST_SECONDS)
        kept = [
            UpdateOne(
                {"_id": {"run": key, "owner": owner, "request": each.request_id}},
                {"$setOnInsert": {"body": dumped(each), "expires": expires}},
                upsert=True,
            )
            for each in requests
        ]
        await self._database.retried(lambda: self._database.bulk_write(schema.REQUESTS, kept))
        id = {"run": key, "owner": owner, "request": wanted}
        collection = self._database.collection(schema.REQUESTS)
        found = await self._database.retried(lambda: collection.find_one({"_id": id}, {"body": 1}))
        return None if found is None else Request(*loaded(found["body"]))

    async def delete_all(self, run_id: str) -> None:
        """Delete all documents of a run, and its requests."""
        wanted = {"_id.run": self._database.run_key(run_id)}
        for name in (schema.DOCUMENTS, schema.REQUESTS):
            await self._database.retried(partial(self._database.collection(name).delete_many, wanted))

    async def count(self, run_id: str, kind: DocumentKind) -> int:
        """Return how many there are of a kind."""
        wanted = {"_id.run": self._database.run_key(run_id), "_id.kind": kind}
        documents = self._database.collection(schema.DOCUMENTS)
        return await self._database.retried(lambda: documents.count_documents(wanted))

    # Many requests in one call

    async def _get_all(self, keys: list[_Key]) -> list[Document | None]:
        documents, wanted = self._database.collection(schema.DOCUMENTS), [self._id(key) for key in dict.fromkeys(keys)]
        found = await self._database.retried(lambda: documents.find({"_id": {"$in": wanted}}, _PROJECTION).to_list())
        by_id = {tuple(document["_id"].values()): _decoded(document) for document in found}
        return [by_id.get(tuple(self._id(key).values())) for key in keys]

    async def _put_all(self, puts: list[_Put]) -> list[bool]:
        tokens = [self._database.new_token() for _ in puts]
        operations = [self._operation(put, token) for put, token in zip(puts, tokens, strict=True)]
        done = await self._database.retried(lambda: self._database.bulk_write(schema.DOCUMENTS, operations))
        updates = sum(put.revision > 0 for put in puts)
        if done.matched == updates and not done.duplicates:
            return [True] * len(puts)
        # Which of them failed can be seen by what is left of them; see `Rollouts`.
        documents, ids = self._database.collection(schema.DOCUMENTS), [self._id(put.key) for put in puts]
        found = await self._database.retried(lambda: documents.find({"_id": {"$in": ids}}, {"written": 1}).to_list())
        left = {document["written"] for document in found}
        return [token in left for token in tokens]

    async def _latest_all(self, asked: list[tuple[str, DocumentKind]]) -> list[str | None]:
        different = list(dict.fromkeys(asked))
        found = await asyncio.gather(*(self._database.retried(partial(self._newest, *each)) for each in different))
        latest = dict(zip(different, found, strict=True))
        return [latest[each] for each in asked]

    async def _newest(self, run_id: str, kind: DocumentKind) -> str | None:
        found = await self._database.collection(schema.DOCUMENTS).find_one(
            {"_id.run": self._database.run_key(run_id), "_id.kind": kind}, {"_id": 1}, sort=[("changed", -1)]
        )
        return None if found is None else found["_id"]["key"]

    def _operation(self, put: _Put, token: str) -> InsertOne[dict[str, Any]] | UpdateOne:
        id = self._id(put.key)
        values = {"value": put.value, "requests": put.requests, "revision": put.revision + 1, "written": token}
        if put.revision == 0:
            return InsertOne({"_id": id, "number": SERVER_TIME, "changed": SERVER_TIME, **values})
        return UpdateOne({"_id": id, "revision": put.revision}, {"$set": values, "$currentDate": {"changed": NOW}})

    def _id(self, key: _Key) -> dict[str, str]:
        run_id, kind, own = key
        return {"run": self._database.run_key(run_id), "kind": kind, "key": own}


def _decoded(document: dict[str, Any]) -> Document:
    return Document(
        document["_id"]["key"],
        loaded(document["value"]),
        document["revision"],
        requests_of(loaded(document["requests"])),
    )
