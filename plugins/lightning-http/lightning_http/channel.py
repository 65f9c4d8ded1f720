"""What a runner process says to the one that started it."""

import os
import pickle
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from lightning_http.logs import CarriedRecord

Ending = Literal["over", "broken", "hopeless", "failed"]
"""`over`: the run has ended. `broken`: it could not begin, and no other one could. `hopeless`: it has failed, and so
will others."""

_LENGTH = struct.Struct("!Q")
"""What comes before each word: how many bytes it has."""

_READ_BYTES = 65_536
"""How much to read at once."""


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
        self._unsaid: deque[bytes] = deque()
        self._speaking = threading.RLock()
        self._is_speaking = False

    def tell(self, said: Report | CarriedRecord) -> None:
        """Say something; what is said when nobody is there any more is lost.

        Python may collect garbage at any moment, and run a `__del__` that logs: what it has to say in the midst of
        another word comes after that.
        """
        word = pickle.dumps(said)
        self._unsaid.append(_LENGTH.pack(len(word)) + word)
        with self._speaking:
            while self._unsaid and not self._is_speaking:
                self._is_speaking = True
                try:
                    with suppress(OSError):
                        self._say(self._unsaid.popleft())
                finally:
                    self._is_speaking = False

    def _say(self, word: bytes) -> None:
        left = memoryview(word)
        while left:
            left = left[os.write(self._connection.fileno(), left) :]


class Words:
    """What comes over a line, in the process that started the other one. It is never waited for.

    Args:
        connection: From the other process.
    """

    def __init__(self, connection: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(True)  # for those who send: a default timeout of this process is not meant for them
        self._read = bytearray()

    def fileno(self) -> int:
        """What is readable when more has come."""
        return self._socket.fileno()

    def next(self) -> bytes | None:
        """Return what was said next, pickled; None where it has not come yet, or not all of it.

        Raises:
            EOFError: When nothing more comes.
            OSError: Likewise.
        """
        while (word := self._complete()) is None:
            try:
                more = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not more:
                raise EOFError("the process has ended")
            self._read += more
        return word

    def close(self) -> None:
        """Hear nothing any more."""
        self._socket.close()

    def _complete(self) -> bytes | None:
        if len(self._read) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._read)
        end = _LENGTH.size + length
        if len(self._read) < end:
            return None
        word = bytes(self._read[_LENGTH.size : end])
        del self._read[:end]
        return word
