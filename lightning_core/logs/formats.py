"""One record, one line: `key=value`, or JSON."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lightning_core.errors import RunFolderError, StoreError
from lightning_core.logs.secrets import hide_in_field, hide_in_text
from lightning_core.logs.structure import structure_of

_COLORS: Mapping[int, str] = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_NO_COLOR = "\x1b[0m"


class JsonLinesFormatter(logging.Formatter):
    """Writes a JSON object a record: `time`, `level`, `logger`, `event`, the fields, `text` and `exception`.

    Times are in UTC, in ISO 8601. Numbers, booleans and None keep their type; other values are text. A field that is
    named as one of the others is called `field_NAME`. What looks like a secret is replaced by `***`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write one line."""
        return json.dumps(_parts(record), ensure_ascii=False, allow_nan=True)


class KeyValueFormatter(logging.Formatter):
    """Writes the same as `name=value`, with quotes around a value that needs them; an exception follows on new lines.

    An error of a store or of a run's folder is shown without its traceback.

    Args:
        color: Whether the level has a colour of the terminal's.
    """

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """Write one line, and the traceback if there is one."""
        parts = _parts(record)
        exception = parts.pop("exception", None)
        words = [f"{name}={_quoted(value)}" for name, value in parts.items()]
        if self._color and record.levelno in _COLORS:
            words[1] = f"{_COLORS[record.levelno]}{words[1]}{_NO_COLOR}"
        line = " ".join(words)
        return line if exception is None else f"{line}\n{exception}"


def _parts(record: logging.LogRecord) -> dict[str, Any]:
    structure = structure_of(record)
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    parts: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    if structure.event is not None:
        parts["event"] = structure.event
    own = {"time", "level", "logger", "event", "text", "exception"}
    for name, value in structure.fields.items():
        parts[f"field_{name}" if name in own else name] = hide_in_field(name, value)
    if structure.text:
        parts["text"] = hide_in_text(structure.text)
    if record.exc_info and isinstance(record.exc_info[1], StoreError | RunFolderError):  # a traceback adds nothing
        error = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        if error not in record.getMessage():
            parts["exception"] = hide_in_text(error)
    elif record.exc_info and record.exc_info[0] is not None:
        parts["exception"] = hide_in_text(logging.Formatter().formatException(record.exc_info))
    elif record.exc_text:  # of another process
        parts["exception"] = hide_in_text(record.exc_text)
    return parts


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
