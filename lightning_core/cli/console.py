"""The console of the commands that show what agents and algorithms wrote."""

import io
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

import click
from pydantic import BaseModel

from lightning_core.secrets import hide_keys, hide_keys_in
from lightning_core.texts import plain_console as plain_console


class JsonLines:
    """Writes objects as lines of JSON. When the reader closes the stream, it goes silent.

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
        line = json.dumps(to_json(record), ensure_ascii=False, allow_nan=False)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._is_broken = True


@contextmanager
def stdout_for_json() -> Iterator[JsonLines]:
    """Keep stdout for JSON during a `with` block: other output there goes to stderr.

    That holds for programs that an agent starts, too, where stdout is that of the process.
    """
    with ExitStack() as undo:
        stream: TextIO = sys.stdout
        try:
            descriptor: int | None = sys.stdout.fileno()
        except (io.UnsupportedOperation, ValueError):  # it is not a file: of a test, or of a program around this one
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
    with suppress(BrokenPipeError):  # the reader is gone, and that is known
        stream.close()


def to_json(value: Any) -> Any:
    """Copy a value into what JSON has, without keys; numbers that are not finite become null, other objects text."""
    return hide_keys_in(_as_json(value))


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        return _as_json(value.model_dump())
    if isinstance(value, Mapping):
        return {hide_keys(str(key)): _as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_as_json(item) for item in value]
    return repr(value)


def show_warnings(context: click.Context, *, verbose: bool = False, level: str = "WARNING") -> None:
    """Show what is logged from a level on, for as long as a command runs; all that is logged where wanted.

    Warnings are lines for people. Who asks for more gets the time and the fields of each record.
    """
    # Late: who asks for help does not pay for it.
    from lightning_core.logs import PlainFormatter, reset_logging, setup_logging
    from lightning_core.secrets import remember_environment

    remember_environment()
    level = "DEBUG" if verbose else level
    handler = _Stderr()
    handler.setFormatter(PlainFormatter() if level == "WARNING" else None)
    setup_logging(level, console=False, extra_handlers=[handler])
    context.call_on_close(reset_logging)
    context.with_resource(warnings.catch_warnings())
    # Options of a config that have no effect; Python shows such warnings only where a program's own lines cause them.
    warnings.filterwarnings("default", category=DeprecationWarning, module=r"lightning_core\.registry")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is `sys.stderr` at that moment: a live display puts something there that keeps off its lines."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)
