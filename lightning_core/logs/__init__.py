"""Logs of Lightning Core and its plugins, for people and for machines.

A library is quiet by default: nothing is shown until somebody asks for it, with `setup_logging` or with a handler of
their own. A record has the name of an event and its fields, in the message itself:

    logger.warning("lightning.late_result rollout_id=%s attempt_id=%s: %s", rollout_id, attempt_id, exc)

So any handler shows all of it, and the formatters here tell the parts apart.
"""

from lightning_core.logs.formats import JsonLinesFormatter, KeyValueFormatter, RolloutFilter
from lightning_core.logs.setup import LogFormat, configure_logger, setup_logging, setup_module_logging

__all__ = [
    "JsonLinesFormatter",
    "KeyValueFormatter",
    "LogFormat",
    "RolloutFilter",
    "configure_logger",
    "setup_logging",
    "setup_module_logging",
]
