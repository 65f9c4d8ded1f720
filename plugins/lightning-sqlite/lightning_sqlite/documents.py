"""Small documents in the database, and requests that records have no more room for."""

from collections.abc import Sequence
from typing import Any

from lightning_core.lifecycle import Request
from lightning_core.store.backend import REQUEST_SECONDS, Document, DocumentKind
from lightning_core.store.codec import as_json, dumped, loaded, requests_of
from lightning_sqlite.session import LatestKey, Stored
from lightning_sqlite.writer import SqlitePart, in_the_thread


class DocumentPart(SqlitePart):
    """The documents of all runs."""

    @in_the_thread
    def put_document(
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
            InvalidRequest: When the value has something that JSON cannot hold.
        """
        present = self._stored(run_id, kind, key)
        if revision != (0 if present is None else present.document.revision):
            return None
        document = Document(key, as_json(value, f"{kind} {key!r}"), revision + 1, requests)
        columns = (document.revision, self._session.next_number("written"), dumped(requests), dumped(document.value))
        if present is None:
            number = self._execute(
                "INSERT INTO document VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (self._session.run(run_id).number, kind, key, *columns),
            ).lastrowid
            assert number is not None
        else:
            number = present.number
            self._execute(
                "UPDATE document SET revision = ?, written = ?, requests = ?, value = ? WHERE document = ?",
                (*columns, number),
            )
        self._session.documents.set((run_id, kind, key), Stored(number, document))
        self._session.latest.set((run_id, kind), LatestKey(key))
        return document

    async def get_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key, or None when there is none."""
        self._writer.check_usable()
        stored = self._session.documents.committed((run_id, kind, key))
        return await self._read_document(run_id, kind, key) if stored is None else stored.document

    @in_the_thread
    def _read_document(self, run_id: str, kind: DocumentKind, key: str) -> Document | None:
        stored = self._stored(run_id, kind, key)
        return None if stored is None else stored.document

    async def latest_key(self, run_id: str, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        self._writer.check_usable()
        latest = self._session.latest.committed((run_id, kind))
        return await self._read_latest(run_id, kind) if latest is None else latest.key

    @in_the_thread
    def _read_latest(self, run_id: str, kind: DocumentKind) -> str | None:
        latest = self._session.latest.get((run_id, kind))
        if latest is None:
            run = self._session.find_run(run_id)
            row = None
            if run is not None:
                row = self._execute(
                    "SELECT key FROM document WHERE run = ? AND kind = ? ORDER BY written DESC LIMIT 1",
                    (run.number, kind),
                ).fetchone()
            latest = LatestKey(None if row is None else row[0])
            self._session.latest.set((run_id, kind), latest)
        return latest.key

    @in_the_thread
    def list_documents(self, run_id: str, kind: DocumentKind) -> list[Document]:
        """Return all documents of a kind, in the order of their creation."""
        run = self._session.find_run(run_id)
        if run is None:
            return []
        rows = self._execute(
            "SELECT key, value, revision, requests FROM document WHERE run = ? AND kind = ? ORDER BY document",
            (run.number, kind),
        ).fetchall()
        return [_decoded(columns) for columns in rows]

    def _count_documents(self, run_id: str, kind: DocumentKind) -> int:
        run = self._session.find_run(run_id)
        if run is None:
            return 0
        cursor = self._execute("SELECT count(*) FROM document WHERE run = ? AND kind = ?", (run.number, kind))
        number: int = cursor.fetchone()[0]
        return number

    @in_the_thread
    def remember_requests(
        self, run_id: str, owner: str, requests: Sequence[Request], *, now: float, wanted: str
    ) -> Request | None:
        """Keep requests that a record has no more room for, and look one up among those that were kept before."""
        run = self._session.run(run_id).number
        row = self._execute(
            "SELECT body FROM request WHERE run = ? AND owner = ? AND request_id = ?", (run, owner, wanted)
        ).fetchone()
        for request in requests:
            self._execute(
                "INSERT OR IGNORE INTO request VALUES (?, ?, ?, ?, ?)",
                (run, owner, request.request_id, now, dumped(request)),
            )
        self._execute(
            "DELETE FROM request WHERE (run, owner, request_id) IN "
            "(SELECT run, owner, request_id FROM request WHERE at <= ? ORDER BY at LIMIT ?)",
            (now - REQUEST_SECONDS, 2 * len(requests)),
        )
        return None if row is None else Request(*loaded(row[0]))

    def _stored(self, run_id: str, kind: DocumentKind, key: str) -> Stored | None:
        stored = self._session.documents.get((run_id, kind, key))
        if stored is None and (run := self._session.find_run(run_id)) is not None:
            row = self._execute(
                "SELECT document, key, value, revision, requests FROM document WHERE run = ? AND kind = ? AND key = ?",
                (run.number, kind, key),
            ).fetchone()
            if row is not None:
                stored = Stored(row[0], _decoded(row[1:]))
                self._session.documents.set((run_id, kind, key), stored)
        return stored


def _decoded(columns: Sequence[Any]) -> Document:
    key, value, revision, requests = columns
    return Document(key, loaded(value), revision, requests_of(loaded(requests)))
