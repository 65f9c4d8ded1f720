"""A run's small documents as models: resources, workers."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from lightning_core.lifecycle import MAX_REQUESTS
from lightning_core.store.backend import Document, DocumentKind, StoreBackend
from lightning_core.store.copies import copy_value

M = TypeVar("M", bound=BaseModel)


class Documents:
    """The documents of one run.

    Args:
        backend: Where they are kept.
        run_id: Whose documents.
    """

    def __init__(self, backend: StoreBackend, run_id: str) -> None:
        self._backend = backend
        self._run_id = run_id

    async def get(self, kind: DocumentKind, key: str, model: type[M]) -> M | None:
        """Return the document of this key, or None when there is none."""
        document = await self.find(kind, key)
        return None if document is None else _read(document, model)

    async def find(self, kind: DocumentKind, key: str) -> Document | None:
        """Return the document of this key as it is kept, or None when there is none. Its value is not to be changed."""
        return await self._backend.get_document(self._run_id, kind, key)

    async def all(self, kind: DocumentKind, model: type[M]) -> list[M]:
        """Return all documents of a kind, in the order of their creation."""
        return [_read(document, model) for document in await self._backend.list_documents(self._run_id, kind)]

    async def latest_key(self, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        return await self._backend.latest_key(self._run_id, kind)

    async def change(
        self,
        kind: DocumentKind,
        key: str,
        model: type[M],
        change: Callable[[M | None], M],
        *,
        request_id: str | None = None,
        known: Document | None = None,
    ) -> M:
        """Write what `change` makes of the document (None when there is none), by compare-and-set.

        Args:
            kind: The document's kind.
            key: Its key.
            model: What it is read as.
            change: Returns what it is to become; the same object for no change.
            request_id: Makes the change once, however often it is asked for in a row.
            known: The document as it was a moment ago, which saves reading it. Only for a change that changes something
                whatever it finds.

        Returns:
            The document as it is now.
        """
        document = await self.find(kind, key) if known is None else known
        while True:
            present = None if document is None else _read(document, model)
            if present is not None and document is not None and request_id in document.requests:
                return present
            changed = change(present)
            if changed is present and request_id is None:
                return present
            if await self._write(kind, key, copy_value(changed.model_dump()), document, request_id):
                return changed
            document = await self.find(kind, key)

    async def put(self, kind: DocumentKind, key: str, value: Any, *, request_id: str | None = None) -> None:
        """Write a document, whatever was there; once for each request."""
        while True:
            document = await self.find(kind, key)
            if document is not None and request_id in document.requests:
                return
            if await self._write(kind, key, value, document, request_id):
                return

    async def _write(
        self, kind: DocumentKind, key: str, value: Any, present: Document | None, request_id: str | None
    ) -> bool:
        requests = () if present is None else present.requests
        written = await self._backend.put_document(
            self._run_id,
            kind,
            key,
            value,
            revision=0 if present is None else present.revision,
            requests=requests if request_id is None else (*requests, request_id)[-MAX_REQUESTS:],
        )
        return written is not None


def _read(document: Document, model: type[M]) -> M:
    return model.model_validate(copy_value(document.value))
