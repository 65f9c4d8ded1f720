"""Output for programs: a JSON object a line on stdout, and nothing else there."""

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from pydantic import BaseModel

from lightning_core.logs.secrets import hide_keys


class JsonLines:
    """Writes objects as lines of JSON. When nobody reads them any more, it goes silent.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_broken = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one object, and flush it. A number that is not finite is null, as JSON has no such number."""
        if self._is_broken:
            return
        line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._is_broken = True


@contextmanager
def stdout_for_json() -> Iterator[JsonLines]:
    """Keep stdout for JSON during a `with` block: what anybody else writes there goes to stderr.

    That holds for programs that an agent starts, too, where stdout is that of the process.
    """
    with ExitStack() as undo:
        stream: TextIO = sys.stdout
        try:
            descriptor: int | None = sys.stdout.fileno()
        except (io.UnsupportedOperation, ValueError):  # it is no file: of a test, or of a program around this one
            descriptor = None
        if descriptor is not None:
            stream.flush()
            stream = open(os.dup(descriptor), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  # closed below
            undo.callback(_close, stream)
            undo.callback(os.dup2, stream.fileno(), descriptor)
            os.dup2(sys.stderr.fileno(), descriptor)
        undo.enter_context(redirect_stdout(sys.stderr))
        yield JsonLines(stream)


def _close(stream: TextIO) -> None:
    with suppress(BrokenPipeError):  # nobody reads what is left in it, and that is known
        stream.close()


def plain(value: Any) -> Any:
    """Copy a value into what JSON has, without keys; numbers that are not finite become null, other objects text."""
    if isinstance(value, str):
        return hide_keys(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {hide_keys(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    return hide_keys(repr(value))
