"""That a run has not ended, as far as this process knows. Every claim asks, and it hardly ever changes."""

import threading
import time

from lightning_core.store.backend import Document

FRESH_SECONDS = 0.25
"""How late the end of a run may be seen that others write; who waits is called when it is heard of."""


class RunStates:
    """The documents that say whether runs have ended. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Document | None, float]] = {}
        self._changes = 0

    def known(self, run_id: str) -> tuple[bool, Document | None]:
        """Return whether the document is known, and what it is; None where there is none."""
        document, asked = self._known.get(run_id, (None, float("-inf")))
        return time.monotonic() - asked <= FRESH_SECONDS, document

    def ask(self) -> tuple[int, float]:
        """Note that the database is about to be asked; the answer goes with what this returns."""
        return self._changes, time.monotonic()

    def answered(self, run_id: str, question: tuple[int, float], document: Document | None) -> None:
        """Note what the database said, unless something has changed meanwhile.

        Of a run that has ended it is not noted: when it begins again, whoever begins it expects work to be given.
        """
        changes, asked = question
        if document is not None and document.value["ended"]:
            return
        with self._lock:
            if changes == self._changes:
                self._known[run_id] = document, asked

    def changed(self, run_id: str) -> None:
        """Ask the database the next time."""
        with self._lock:
            self._changes += 1
            self._known.pop(run_id, None)
