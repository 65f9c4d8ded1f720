"""One record, one line: `key=value`, or JSON."""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lightning_core.errors import RunFolderError, StoreError
from lightning_core.secrets import hide_in_field, hide_in_text
from lightning_core.tracer import current_trace


class RolloutFilter(logging.Filter):
    """Gives each record `run_id`, `rollout_id` and `attempt_id`, from the trace that its caller is in; else None.

    It lets every record pass. Add it to a handler, not to a logger: a logger does not ask its filters about records
    of the loggers below it. A handler that formats in another thread has to come after one that does not.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes, unless the record has them already."""
        trace = current_trace()
        for name in CONTEXT_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, getattr(trace, name, None))
        return True


CONTEXT_FIELDS = ("run_id", "rollout_id", "attempt_id")
"""The attributes that records get."""


_HEAD = re.compile(r"(?P<event>lightning\.[a-z0-9_.]*[a-z0-9_])(?P<fields>(?: \w+=%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])*)")
_FIELD_NAME = re.compile(r" (\w+)=%")


@dataclass(frozen=True, slots=True)
class Structure:
    """What a record says."""

    event: str | None
    """The dotted name of what happened; None for a record of another library."""
    fields: dict[str, Any]
    """Values by name, as they were given to the logger; then what is known of the rollout."""
    text: str
    """What it says besides; may be empty."""


def structure_of(record: logging.LogRecord) -> Structure:
    """Read a record whose message is `lightning.EVENT name=%s name=%d ...; any text`.

    Any other record has its message as its text.
    """
    head = _HEAD.match(record.msg) if isinstance(record.msg, str) and isinstance(record.args, tuple | None) else None
    if head is None:
        return Structure(None, _context_fields(record), record.getMessage())
    names = _FIELD_NAME.findall(head["fields"])
    args = record.args or ()
    assert isinstance(args, tuple)
    fields = dict(zip(names, args, strict=False))
    template, rest = record.msg[head.end() :], args[len(names) :]
    text = template % rest if record.args else template
    return Structure(head["event"], _context_fields(record) | fields, text.lstrip(" ;:,"))


def _context_fields(record: logging.LogRecord) -> dict[str, Any]:
    known = {name: getattr(record, name, None) for name in CONTEXT_FIELDS}
    return {name: value for name, value in known.items() if value is not None}


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
