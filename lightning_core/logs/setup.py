"""Shows logs: on the terminal, in files."""

import difflib
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from lightning_core.logs.formats import JsonLinesFormatter, KeyValueFormatter, RolloutFilter
from lightning_core.registry.inventory import installed_entry_points

LogFormat = Literal["key=value", "json"]
"""How a record is written: as a line of `key=value` words, or as a line of JSON."""

CORE = "lightning_core"
"""The logger above all loggers of the core."""

_added: dict[str, list[logging.Handler]] = defaultdict(list)
"""By logger, what was added here, to be replaced by the next setup."""

_levels: set[str] = set()
"""The loggers that were given a level of their own here."""

_captures_warnings = False
"""Whether Python's warnings are log records because of a setup here."""


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
    for name in dict.fromkeys([CORE, *_plugin_packages(), *captured, *(apply_to or ())]):
        _set_up(name, handlers, number, propagate)
    for name, path in per_logger.items():
        _add(name, [_file(path, chosen)])
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)
        _levels.add(name)
    if capture_warnings and not warnings_are_captured():
        _capture_warnings(True)


def setup_module_logging(
    level: int | str = "INFO",
    *,
    name: str = CORE,
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
    for name in list(_added):
        _take_back(name)
    while _levels:
        logging.getLogger(_levels.pop()).setLevel(logging.NOTSET)
    if _captures_warnings:
        _capture_warnings(False)


def warnings_are_captured() -> bool:
    """Whether Python's warnings are log records, by this or another setup."""
    return warnings.showwarning.__module__ == logging.__name__


def _capture_warnings(capture: bool) -> None:
    global _captures_warnings
    logging.captureWarnings(capture)
    _captures_warnings = capture


def _set_up(name: str, handlers: list[logging.Handler], level: int, propagate: bool) -> None:
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.propagate = propagate
    _add(name, handlers)


def _add(name: str, handlers: list[logging.Handler]) -> None:
    logger = logging.getLogger(name)
    for handler in handlers:
        if not any(isinstance(each, RolloutFilter) for each in handler.filters):
            handler.addFilter(RolloutFilter())
        logger.addHandler(handler)
        _added[name].append(handler)


def _take_back(name: str) -> None:
    logger = logging.getLogger(name)
    for handler in _added.pop(name, []):
        logger.removeHandler(handler)
        if isinstance(handler, _OwnFile):
            handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


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
        near = difflib.get_close_matches(level.upper(), names, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no log level named {level!r}; it is one of: {', '.join(names)}{hint}")
    return names[level.upper()]


def _plugin_packages() -> list[str]:
    """Return the packages that offer something to Lightning Core: their loggers are named as they are."""
    packages = {entry_point.value.partition(":")[0].partition(".")[0] for entry_point in installed_entry_points()}
    return sorted(packages - {CORE})


def configure_logger(level: int | str = logging.INFO, name: str = CORE) -> logging.Logger:
    """Show the logs of one logger, as `setup_module_logging` does; deprecated.

    Returns:
        The logger.
    """
    warnings.warn("configure_logger is deprecated; call setup_logging", DeprecationWarning, stacklevel=2)
    return setup_module_logging(level, name=name)


FORMER = "agentlightning"

_told: set[str] = set()


def warn_of_former_loggers() -> None:
    """Say once of each logger of agentlightning 0.3 that has a level or a handler where its records are."""
    for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
        if name.partition(".")[0] != FORMER or name in _told or not isinstance(logger, logging.Logger):
            continue
        if logger.level != logging.NOTSET or logger.handlers:
            _told.add(name)
            logging.getLogger(__name__).warning(
                "lightning.former_logger name=%s; its records are those of lightning_core%s and of the plugins' "
                "loggers, such as lightning_apo: set up these, or call setup_logging",
                name,
                name.removeprefix(FORMER),
            )
