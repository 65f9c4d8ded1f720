"""The logging set-up of agentlightning 0.2, which scripts of 0.3 still call."""

import logging
import warnings

from lightning_core.logs.setup import CORE, setup_module_logging


def configure_logger(level: int | str = logging.INFO, name: str = CORE) -> logging.Logger:
    """Show the logs of one logger, as `setup_module_logging` does; deprecated.

    Returns:
        The logger.
    """
    warnings.warn("configure_logger is deprecated; call setup_logging", DeprecationWarning, stacklevel=2)
    return setup_module_logging(level, name=name)
