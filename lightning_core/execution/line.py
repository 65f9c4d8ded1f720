"""What a runner process says to the one that started it."""

import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from lightning_core.logs.carried import CarriedRecord

Ending = Literal["over", "broken", "hopeless", "failed"]
"""`over`: the run has ended. `broken`: it could not begin, and no other one could. `hopeless`: it has failed, and so
will others."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a runner process says of itself: that it is ready, or why it ends."""

    kind: Literal["ready"] | Ending
    error: str = ""
    """In one line."""
    trace: str = ""


class Line:
    """The way from a runner process to the one that started it, for any of its threads.

    Args:
        connection: To that process.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._speaking = threading.Lock()

    def tell(self, said: Report | CarriedRecord) -> None:
        """Say something; what is said when nobody is there any more is lost."""
        with self._speaking, suppress(OSError):
            self._connection.send(said)
