"""Which rollout a record belongs to."""

import logging

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
