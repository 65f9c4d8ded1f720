"""Logs of Lightning Core and its plugins, for people and for machines.

Warnings go to stderr, which is Python's default. `setup_logging`, or a handler of your own, shows more. A record has
the name of an event and its fields, in the message itself:

    logger.warning("lightning.late_result rollout_id=%s attempt_id=%s: %s", rollout_id, attempt_id, exc)

So any handler shows all of it, and the formatters here tell the parts apart.
"""

import json
import logging
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_core.errors import RunFolderError, StoreError
from lightning_core.registry.inventory import installed_entry_points
from lightning_core.registry.options import did_you_mean
from lightning_core.secrets import hide_in_field, hide_in_text
from lightning_core.texts import visible
from lightning_core.tracer import current_trace

__all__ = [
    "JsonLinesFormatter",
    "KeyValueFormatter",
    "LogFormat",
    "PlainFormatter",
    "RolloutFilter",
    "setup_logging",
    "setup_module_logging",
]


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


def _read(record: logging.LogRecord) -> tuple[str | None, dict[str, Any], str]:
    """Read a record whose message is `lightning.EVENT name=%s name=%d ...; any text`.

    Returns:
        The event, the fields as they were given to the logger with what is known of the rollout, and the text. A
        record of another library has no event, and its message is its text.
    """
    head = _HEAD.match(record.msg) if isinstance(record.msg, str) and isinstance(record.args, tuple | None) else None
    if head is None:
        return None, _context_fields(record), record.getMessage()
    names = _FIELD_NAME.findall(head["fields"])
    args = record.args or ()
    assert isinstance(args, tuple)
    fields = dict(zip(names, args, strict=False))
    template, rest = record.msg[head.end() :], args[len(names) :]
    text = template % rest if record.args else template
    return head["event"], _context_fields(record) | fields, text.lstrip(" ;:,")


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


class PlainFormatter(logging.Formatter):
    """Writes `warning: what happened: what it says (name=value ...)` for people; an exception follows on new lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line, and the traceback if there is one."""
        parts = _parts(record)
        level, exception = parts.pop("level"), parts.pop("exception", None)
        event, text = parts.pop("event", ""), parts.pop("text", "")
        del parts["time"], parts["logger"]
        fields = " ".join(f"{name}={_quoted(value)}" for name, value in parts.items())
        words = [level, re.sub("[._]", " ", event.removeprefix("lightning.")), visible(text)]
        line = ": ".join(filter(None, words)) + (f" ({fields})" if fields else "")
        return line if exception is None else f"{line}\n{exception}"


def _parts(record: logging.LogRecord) -> dict[str, Any]:
    event, fields, text = _read(record)
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    parts: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    if event is not None:
        parts["event"] = event
    reserved = {"time", "level", "logger", "event", "text", "exception"}
    for name, value in fields.items():
        parts[f"field_{name}" if name in reserved else name] = hide_in_field(name, value)
    if text:
        parts["text"] = hide_in_text(text)
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


LogFormat = Literal["key=value", "json"]
"""How a record is written: as a line of `key=value` words, or as a line of JSON."""

_CORE = "lightning_core"
"""The logger above all loggers of the core."""

_undo: dict[str, ExitStack] = defaultdict(ExitStack)
"""By logger, what takes back its setup."""


def setup_logging(
    level: int | str = "INFO",
    *,
    format: LogFormat = "key=value",
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, int | str] | None = None,
    extra_handlers: Iterable[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Iterable[str] | None = None,
    files: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
) -> None:
    """Show the logs of Lightning Core and of the plugins that are installed.

    Other libraries and the root logger are left as they are. A second call replaces what the first one set up. Each
    record says which run, rollout and attempt it belongs to, where it was made inside of a traced rollout.

    Args:
        level: The least level that is shown; a name or a number.
        format: How records are written.
        console: Whether to write to stderr.
        color: Whether to colour levels there, when it is a terminal and `NO_COLOR` is not set.
        propagate: Whether the root logger's handlers get the records too.
        capture_warnings: Whether Python's warnings become log records.
        submodule_levels: Other levels, by the name of the logger.
        extra_handlers: More handlers; they keep the formatter that they have, if any.
        formatter: Used in place of `format`.
        apply_to: More loggers, by name, that are set up in the same way.
        files: Where to write to as well: one file for all, or files by the name of the logger. Folders are made.

    Raises:
        ValueError: For a level or a format that there is not.
    """
    chosen = _formatter(format, formatter)
    number = _level(level)
    levels = {name: _level(each) for name, each in (submodule_levels or {}).items()}
    handlers = list(extra_handlers or ())
    for handler in handlers:
        if handler.formatter is None:
            handler.setFormatter(chosen)
    if console:
        handlers.append(_console(chosen if formatter is not None or format == "json" else _for_terminal(color)))
    per_logger = files if isinstance(files, Mapping) else {}
    if files is not None and not isinstance(files, Mapping):
        handlers.append(_file(files, chosen))
    reset_logging()
    captured = ["py.warnings"] if capture_warnings else []
    for name in dict.fromkeys([_CORE, *_plugin_packages(), *captured, *(apply_to or ())]):
        _set_up(name, handlers, number, propagate)
    for name, path in per_logger.items():
        _add(name, _file(path, chosen))
    for name, each in levels.items():
        _set_level(name, each)
    if capture_warnings and warnings.showwarning.__module__ != logging.__name__:  # another setup may capture them
        logging.captureWarnings(True)
        _undo["py.warnings"].callback(logging.captureWarnings, False)


def setup_module_logging(
    level: int | str = "INFO",
    *,
    name: str = _CORE,
    format: LogFormat = "key=value",
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
) -> logging.Logger:
    """Show the logs of one logger and of those below it; see `setup_logging`, which does it for all.

    Returns:
        The logger.
    """
    chosen = _formatter(format, None) if format == "json" else _for_terminal(color)
    number = _level(level)
    _take_back(name)
    _set_up(name, [_console(chosen)] if console else [], number, propagate)
    return logging.getLogger(name)


def reset_logging() -> None:
    """Take back what was set up here, and close its files."""
    for name in list(_undo):
        _take_back(name)


def _take_back(name: str) -> None:
    _undo.pop(name, ExitStack()).close()


def _set_up(name: str, handlers: list[logging.Handler], level: int, propagate: bool) -> None:
    logger = logging.getLogger(name)
    _set_level(name, level)
    logger.propagate = propagate
    _undo[name].callback(setattr, logger, "propagate", True)
    for handler in handlers:
        _add(name, handler)


def _set_level(name: str, level: int) -> None:
    logger = logging.getLogger(name)
    logger.setLevel(level)
    _undo[name].callback(logger.setLevel, logging.NOTSET)


def _add(name: str, handler: logging.Handler) -> None:
    logger = logging.getLogger(name)
    if not any(isinstance(each, RolloutFilter) for each in handler.filters):
        handler.addFilter(RolloutFilter())
    logger.addHandler(handler)
    if isinstance(handler, _OwnFile):
        _undo[name].callback(handler.close)
    _undo[name].callback(logger.removeHandler, handler)


class _OwnFile(logging.FileHandler):
    """A file that was opened here, and is closed here."""


def _file(path: str | os.PathLike[str], formatter: logging.Formatter) -> logging.Handler:
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
    handler = _OwnFile(path, encoding="utf-8")
    handler.setFormatter(formatter)
    return handler


def _console(formatter: logging.Formatter) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    return handler


def _for_terminal(color: bool) -> logging.Formatter:
    stream = logging.StreamHandler().stream
    return KeyValueFormatter(color=color and stream.isatty() and not os.environ.get("NO_COLOR"))


def _formatter(format: str, formatter: logging.Formatter | None) -> logging.Formatter:
    if format not in get_args(LogFormat):
        raise ValueError(f"no log format named {format!r}; it is one of: {', '.join(get_args(LogFormat))}")
    if formatter is not None:
        return formatter
    return JsonLinesFormatter() if format == "json" else KeyValueFormatter()


def _level(level: int | str) -> int:
    if isinstance(level, int):
        return level
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        hint = did_you_mean(level.upper(), names)
        raise ValueError(f"no log level named {level!r}; it is one of: {', '.join(names)}{hint}")
    return names[level.upper()]


def _plugin_packages() -> list[str]:
    """Return the packages that offer something to Lightning Core: their loggers are named as they are."""
    packages = {entry_point.value.partition(":")[0].partition(".")[0] for entry_point in installed_entry_points()}
    return sorted(packages - {_CORE})
