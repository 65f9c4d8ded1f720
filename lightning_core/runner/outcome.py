"""How an attempt went: it succeeded, the agent failed, it was stopped, or something else failed."""

import traceback
from dataclasses import dataclass, field
from typing import Any

from lightning_core.adapter.usage import Usage, read_usage
from lightning_core.errors import AgentTimeout, AttemptStopped, Fault
from lightning_core.types import AttemptStatus, Span
from lightning_core.types.text import well_formed

OUT_OF_REACH = frozenset({("openai", "APIConnectionError"), ("anthropic", "APIConnectionError")})
"""What clients of models raise when they have given up reaching the model: the module and the name of the class.

`litellm` derives its own from openai's. A plain `ConnectionError` is not here: it may come from anything that an agent
talks to.
"""


@dataclass(slots=True)
class Outcome:
    """How an attempt went."""

    status: AttemptStatus = "succeeded"
    error: Exception | None = None
    is_fault: bool = False
    """Whether the error is not the agent's."""
    result: Any = None
    """What the agent returned."""
    spans: list[Span] = field(default_factory=list)
    """All that it recorded, in order."""

    def end_with(self, error: Exception) -> None:
        """Take note of what ended the attempt, and whose it is."""
        self.error = error
        self.status = "timeout" if isinstance(error, AgentTimeout) else "failed"
        self.is_fault = is_fault(error)

    @property
    def usage(self) -> Usage:
        """What its model calls used."""
        return read_usage(self.spans)

    @property
    def was_stopped(self) -> bool:
        """Whether the store did not want the attempt any more."""
        return isinstance(self.error, AttemptStopped)

    @property
    def failure(self) -> dict[str, str] | None:
        """The type and the message of the error, as an attempt's metadata have them; None without one."""
        return None if self.error is None else describe(self.error)


def is_fault(error: BaseException) -> bool:
    """Whether an error is a `Fault`, says that a model is out of reach, or is a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_fault, error.exceptions))
    return isinstance(error, Fault) or any(
        (kind.__module__, kind.__qualname__) in OUT_OF_REACH for kind in type(error).__mro__
    )


def describe(error: Exception) -> dict[str, str]:
    """Return an error's type and message, as text that every store can keep."""
    shown = traceback.TracebackException(type(error), error, None)  # str(error) may fail in its turn
    return {"type": type(error).__name__, "message": well_formed(str(shown)) or type(error).__name__}
