"""Loggers of agentlightning 0.3 that a program has set up, and that get no records here."""

import logging

FORMER = "agentlightning"

_told: set[str] = set()


def warn_of_former_loggers() -> None:
    """Say once where the records of each such logger are that has a level or a handler."""
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
