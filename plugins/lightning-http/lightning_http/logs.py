"""What a runner process logs, and says of itself: sent to the process that started it, which shows it as its own."""

import json
import logging
import os
import socket
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lightning_core.logs import RolloutFilter

_PLAIN = (str, int, float, bool, type(None))


class ParentHandler(logging.Handler):
    """Sends records, and other messages, to the process that started this one: a line of JSON each.

    A process that is forked from this one cannot send them: its warnings go to stderr.

    Args:
        end: Of a pair of sockets, whose other end the other process has.
    """

    run_id: str | None = None
    """The run of records that are made outside of a rollout, once it is known."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        self._end = end
        self._process = os.getpid()
        # Python may collect garbage in the midst of `send`, and run a `__del__` that logs; not in the midst of a line.
        self._sending = threading.RLock()
        self.addFilter(RolloutFilter())

    def send(self, kind: str, value: Mapping[str, Any]) -> None:
        """Send a message, in any thread; it is lost where the other process has died."""
        line = json.dumps({kind: value}).encode() + b"\n"
        with suppress(OSError), self._sending:
            self._end.sendall(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        if os.getpid() != self._process:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        if getattr(record, "run_id", None) is None:
            record.run_id = self.run_id
        try:
            self.send("record", _plain(record))
        except Exception:
            self.handleError(record)


def _plain(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says; template and arguments stay apart, where other values can stand for the arguments."""
    fields = {name: value for name, value in vars(record).items() if type(value) in _PLAIN}
    fields |= {"msg": record.getMessage(), "args": (), "exc_info": None}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    if isinstance(record.msg, str) and isinstance(record.args, tuple) and record.args:
        args = tuple(value if type(value) in _PLAIN else str(value) for value in record.args)
        with suppress(TypeError, ValueError):  # such as %d of what is a number only there
            if record.msg % args == fields["msg"]:
                fields |= {"msg": record.msg, "args": args}
    return fields


def show(fields: Mapping[str, Any]) -> None:
    """Hand a record of another process to the loggers of this one, if they want its level."""
    record = logging.makeLogRecord({**fields, "args": tuple(fields["args"])})
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def log_settings() -> dict[str, Any]:
    """Return what of the records of another process would be shown here, as it is now."""
    root = logging.getLogger()
    levels = {name: each.level for name, each in _loggers().items() if each.level != logging.NOTSET}
    captures_warnings = warnings.showwarning.__module__ == logging.__name__
    return {"levels": levels, "disabled": root.manager.disable, "captures_warnings": captures_warnings}


def carry_logs(settings: Mapping[str, Any], handler: logging.Handler) -> None:
    """Let a handler take the records of this process, in place of what handlers there are.

    Args:
        settings: The `log_settings` of the process that shows them.
        handler: Takes them.
    """
    for logger in _loggers().values():
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name, level in settings["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.disable(settings["disabled"])
    logging.captureWarnings(settings["captures_warnings"])
    logging.getLogger().addHandler(handler)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.getLogger().manager.loggerDict.items()
    return {"": logging.getLogger()} | {name: each for name, each in known if isinstance(each, logging.Logger)}
