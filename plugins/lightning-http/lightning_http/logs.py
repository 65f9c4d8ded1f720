"""Records that are made in one process and shown by another one, as that one shows its own."""

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_core.logs import RolloutFilter

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class CarriedRecord:
    """A record without what only its own process can read."""

    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, record: logging.LogRecord) -> "CarriedRecord":
        """Take what a record says; template and arguments stay apart where they are plain values."""
        attributes = {name: value for name, value in vars(record).items() if type(value) in _PLAIN}
        attributes |= _message(record)
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exc_text"] = logging.Formatter().formatException(record.exc_info)
        attributes["exc_info"] = None
        return cls(attributes)

    def show(self) -> None:
        """Hand it to the loggers of this process, if they want its level."""
        record = logging.makeLogRecord(self.attributes)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


def _message(record: logging.LogRecord) -> dict[str, Any]:
    message = record.getMessage()
    args = record.args
    if isinstance(record.msg, str) and isinstance(args, tuple) and args:
        plain = tuple(value if type(value) in _PLAIN else str(value) for value in args)
        try:
            if record.msg % plain == message:
                return {"msg": record.msg, "args": plain}
        except (TypeError, ValueError):  # such as %d of what is a number only there
            return {"msg": message, "args": None}
    return {"msg": message, "args": None}


@dataclass(frozen=True)
class LogLevels:
    """What of the records of another process would be shown here."""

    levels: Mapping[str, int] = field(default_factory=dict)
    """By the name of the logger; the root's is empty."""
    disabled: int = 0
    """The level up to which nothing is shown at all."""
    captures_warnings: bool = False

    @classmethod
    def here(cls) -> "LogLevels":
        """Return those of this process, as they are now."""
        root = logging.getLogger()
        loggers = {name: each for name, each in root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
        levels = {name: each.level for name, each in loggers.items() if each.level != logging.NOTSET}
        captures_warnings = warnings.showwarning.__module__ == logging.__name__
        return cls({"": root.level, **levels}, root.manager.disable, captures_warnings)


class CarryingHandler(logging.Handler):
    """Hands records to another process.

    A process that is forked from this one cannot hand them over: its warnings go to stderr.

    Args:
        carry: Takes each record to the other process; called in any thread.
        run_id: The run of records that are made outside of a rollout, if it is known.
    """

    def __init__(self, carry: Callable[[CarriedRecord], None], *, run_id: str | None = None) -> None:
        super().__init__()
        self._carry = carry
        self._process = os.getpid()
        self.run_id = run_id
        self.addFilter(RolloutFilter())

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand one over if it is to be. Without a lock, as a record may be made while another one is handed over."""
        kept: object = self.filter(record)  # from Python 3.12 on perhaps another record
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one over."""
        if os.getpid() != self._process:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        if getattr(record, "run_id", None) is None:
            record.run_id = self.run_id
        try:
            carried = CarriedRecord.of(record)
        except Exception:
            self.handleError(record)
            return
        self._carry(carried)


def carry_logs(levels: LogLevels, carry: Callable[[CarriedRecord], None]) -> CarryingHandler:
    """Let another process show the records of this one, in place of what handlers there are.

    Args:
        levels: What that one would show.
        carry: Takes a record to it.

    Returns:
        What does it, the only handler of the root logger now.
    """
    root = logging.getLogger()
    for logger in (root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))):
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name, level in levels.levels.items():
        logging.getLogger(name).setLevel(level)
    logging.disable(levels.disabled)
    if levels.captures_warnings:
        logging.captureWarnings(True)
    handler = CarryingHandler(carry)
    root.addHandler(handler)
    return handler
