"""A run's small documents as models: resources, workers."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from lightning_core.lifecycle import MAX_REQUESTS
from lightning_core.store.backend import Document, DocumentKind, StoreBackend

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

    async def get(self, kind: DocumentKind, key: str | None, model: type[M]) -> M | None:
        """Return the document of this key (None: the one written last), or None when there is none."""
        document = await self._backend.get_document(self._run_id, kind, key)
        return None if document is None else model.model_validate(document.value)

    async def all(self, kind: DocumentKind, model: type[M]) -> list[M]:
        """Return all documents of a kind, in the order of their creation."""
        return [model.model_validate(item.value) for item in await self._backend.list_documents(self._run_id, kind)]

    async def latest_key(self, kind: DocumentKind) -> str | None:
        """Return the key of the document written last, or None when there is none."""
        document = await self._backend.get_document(self._run_id, kind, None)
        return None if document is None else document.key

    async def change(
        self,
        kind: DocumentKind,
        key: str,
        model: type[M],
        change: Callable[[M | None], M],
        *,
        request_id: str | None = None,
    ) -> M:
        """Write what `change` makes of the document (None when there is none), by compare-and-set.

        Args:
            kind: The document's kind.
            key: Its key.
            model: What it is read as.
            change: Returns what it is to become.
            request_id: Makes the change once, however often it is asked for in a row.

        Returns:
            The document as it is now.
        """
        while True:
            document = await self._backend.get_document(self._run_id, kind, key)
            present = None if document is None else model.model_validate(document.value)
            if present is not None and document is not None and request_id in document.requests:
                return present
            changed = change(present)
            if await self._write(kind, key, changed.model_dump(), document, request_id):
                return changed

    async def put(self, kind: DocumentKind, key: str, value: Any, *, request_id: str | None = None) -> None:
        """Write a document, whatever was there; once for each request."""
        while True:
            document = await self._backend.get_document(self._run_id, kind, key)
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
