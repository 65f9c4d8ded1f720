"""From a log record to its event, its fields and its text."""

import logging
import re
from dataclasses import dataclass
from typing import Any

from lightning_core.logs.context import CONTEXT_FIELDS

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
