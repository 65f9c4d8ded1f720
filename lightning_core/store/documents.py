"""A run's small documents as models: resources, workers."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from lightning_core.lifecycle import MAX_REQUESTS, Request
from lightning_core.store.backend import Document, DocumentKind, StoreBackend
from lightning_core.store.clock import Clock
from lightning_core.store.copies import copy_value
from lightning_core.store.requests import recall

M = TypeVar("M", bound=BaseModel)


class Documents:
    """The documents of one run.

    Args:
        backend: Where they are kept.
        run_id: Whose documents.
        clock: Where the time comes from.
    """

    def __init__(self, backend: StoreBackend, run_id: str, clock: Clock) -> None:
        self._backend = backend
        self._run_id = run_id
        self._clock = clock

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

    async def change(
        self,
        kind: DocumentKind,
        key: str,
        change: Callable[[Any], Any],
        *,
        request: Request | None = None,
        for_a_day: bool = True,
        known: Document | None = None,
    ) -> Any:
        """Write what `change` makes of the document's value (None when there is none), by compare-and-set.

        Args:
            kind: The document's kind.
            key: Its key.
            change: Returns the value that follows, which is the document's from then on and may share parts with the
                one before; the same object for no change.
            request: Makes the change once, however often it is asked for.
            for_a_day: Whether the request is remembered for a day, rather than until a few newer ones have come.
            known: The document as it was a moment ago, which saves reading it. Only for a change that changes something
                whatever it finds.

        Returns:
            The value as it is now. It is not to be changed.

        Raises:
            InvalidRequest: When the request came before with other arguments.
        """
        document = await self.find(kind, key) if known is None else known
        while True:
            present = None if document is None else document.value
            revision, requests = (0, ()) if document is None else (document.revision, document.requests)
            if request is not None:
                if any(each.request_id == request.request_id for each in requests) and not for_a_day:
                    return present
                if for_a_day and await recall(
                    self._backend, self._run_id, f"{kind}/{key}", requests, request, now=self._clock.now()
                ):
                    return present
                requests = (*requests, request)[-MAX_REQUESTS:]
            changed = change(present)
            if document is not None and changed is present and request is None:
                return present
            written = await self._backend.put_document(
                self._run_id, kind, key, changed, revision=revision, requests=requests
            )
            if written is not None:
                return changed
            document = await self.find(kind, key)


def _read(document: Document, model: type[M]) -> M:
    return model.model_validate(copy_value(document.value))
