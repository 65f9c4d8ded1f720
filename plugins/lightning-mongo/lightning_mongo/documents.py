"""Small documents, and requests that records have no more room for."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from pymongo import DeleteMany, InsertOne, UpdateOne

from lightning_core.concurrency import Batcher
from lightning_core.lifecycle import Request
from lightning_core.store.backend import REQUEST_SECONDS, Document, DocumentKind
from lightning_core.store.codec import as_json, dumped, loaded, requests_of
from lightning_mongo import schema
from lightning_mongo.database import Settings, Write, key_of
from lightning_mongo.portal import MongoPart, in_the_loop
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


class DocumentPart(MongoPart):
    """The documents of all runs of a partition."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._document_gets: Batcher[_Key, Document | None] = Batcher(self._get_documents)
        self._puts: Batcher[_Put, bool] = Batcher(self._put_all)
        self._latest: Batcher[tuple[str, DocumentKind], str | None] = Batcher(self._latest_all)

    @in_the_loop
    async def put_document(
        self,
        run_id: str,
        kind: DocumentKind,
        key: str,
        value: Any,
        *,
        revision: int,
        requests: tuple[Request, ...] = (),
    ) -> Document | None:
        """Write a document, which thereby becomes the latest of its kind.

        Raises:
            InvalidRequest: When the value has something that JSON cannot hold, or is too large.
        """
        content = as_json(value, f"{kind} {key!r}")
        text = dumped(content)
        check_size(f"{kind} {key!r}", len(text))
        written = await self._puts.ask(_Put((run_id, kind, key), text, revision, dumped(requests)))
        return Document(key, content, revision + 1, requests) if written else None

    @in_the_loop
    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        return await self._document_gets.ask((run_id, kind, key))

    @in_the_loop
    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        return await self._latest.ask((run_id, kind))

    @in_the_loop
    async def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        wanted = {"_id.run": self._database.run_key(run_id), "_id.kind": kind}
        documents = await self._database.find(
            schema.DOCUMENTS, wanted, _PROJECTION, sort=[("number", 1)], allow_disk_use=True
        )
        return [_decoded(document) for document in documents]

    @in_the_loop
    async def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before.

        The server forgets them.
        """
        key, expires = self._database.run_key(run_id), expires_in(REQUEST_SECONDS)
        kept = [
            UpdateOne(
                {"_id": {"run": key, "owner": owner, "request": each.request_id}},
                {"$setOnInsert": {"body": dumped(each), "expires": expires}},
                upsert=True,
            )
            for each in requests
        ]
        await self._database.change(schema.REQUESTS, kept)
        id = {"run": key, "owner": owner, "request": wanted}
        found = await self._database.find(schema.REQUESTS, {"_id": id}, {"body": 1})
        return Request(*loaded(found[0]["body"])) if found else None

    async def _delete_all_documents(self, run_id: str) -> None:
        wanted = {"_id.run": self._database.run_key(run_id)}
        for name in (schema.DOCUMENTS, schema.REQUESTS):
            await self._database.change(name, [DeleteMany(wanted)])

    async def _count_documents(self, run_id: str, kind: DocumentKind) -> int:
        wanted = {"_id.run": self._database.run_key(run_id), "_id.kind": kind}
        return await self._database.retried(lambda: self._database.collection(schema.DOCUMENTS).count_documents(wanted))

    # Many requests in one call

    async def _get_documents(self, keys: list[_Key]) -> list[Document | None]:
        wanted = [self._id(key) for key in dict.fromkeys(keys)]
        documents = await self._database.find(schema.DOCUMENTS, {"_id": {"$in": wanted}}, _PROJECTION)
        by_id = {key_of(document): _decoded(document) for document in documents}
        return [by_id.get(tuple(self._id(key).values())) for key in keys]

    async def _put_all(self, puts: list[_Put]) -> list[bool]:
        return await self._database.write(schema.DOCUMENTS, [self._write(put) for put in puts])

    async def _latest_all(self, asked: list[tuple[str, DocumentKind]]) -> list[str | None]:
        different = list(dict.fromkeys(asked))
        newest = await asyncio.gather(*(self._newest(*each) for each in different))
        latest = dict(zip(different, newest, strict=True))
        return [latest[each] for each in asked]

    async def _newest(self, run_id: str, kind: DocumentKind) -> str | None:
        wanted = {"_id.run": self._database.run_key(run_id), "_id.kind": kind}
        found = await self._database.find(schema.DOCUMENTS, wanted, {"_id": 1}, sort=[("changed", -1)], limit=1)
        return found[0]["_id"]["key"] if found else None

    def _write(self, put: _Put) -> Write:
        id, token = self._id(put.key), self._database.new_token()
        values = {"value": put.value, "requests": put.requests, "revision": put.revision + 1, "written": token}
        if put.revision == 0:
            new = {"_id": id, "number": SERVER_TIME, "changed": SERVER_TIME, **values}
            return Write(id, InsertOne(new), token)
        update = {"$set": values, "$currentDate": {"changed": NOW}}
        return Write(id, UpdateOne({"_id": id, "revision": put.revision}, update), token)

    def _id(self, key: _Key) -> dict[str, str]:
        run_id, kind, document_key = key
        return {"run": self._database.run_key(run_id), "kind": kind, "key": document_key}


def _decoded(document: dict[str, Any]) -> Document:
    return Document(
        document["_id"]["key"],
        loaded(document["value"]),
        document["revision"],
        requests_of(loaded(document["requests"])),
    )
