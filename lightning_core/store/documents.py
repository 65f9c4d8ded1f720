"""A run's small documents as models: resources, workers."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from lightning_core.store.backend import DocumentKind, StoreBackend

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

    async def change(self, kind: DocumentKind, key: str, model: type[M], change: Callable[[M | None], M]) -> M:
        """Write what `change` makes of the document (None when there is none), by compare-and-set.

        Returns:
            The document as written.
        """
        while True:
            document = await self._backend.get_document(self._run_id, kind, key)
            changed = change(None if document is None else model.model_validate(document.value))
            revision = 0 if document is None else document.revision
            if await self._backend.put_document(self._run_id, kind, key, changed.model_dump(), revision=revision):
                return changed
