"""Logs of Lightning Core and its plugins, for people and for machines.

Warnings go to stderr, which is Python's default. `setup_logging`, or a handler of your own, shows more. A record has
the name of an event and its fields, in the message itself:

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
