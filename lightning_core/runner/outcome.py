"""How an attempt went: it succeeded, the agent failed, it was stopped, or something else failed."""

import os
import sysconfig
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.parse import urlsplit

from lightning_core.adapter.usage import Usage, read_usage
from lightning_core.errors import AgentTimeout, AttemptStopped, Fault
from lightning_core.logs.secrets import hide_in_text
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
    agent_at: str = ""
    """Where the agent is defined, for an error that was raised after it had returned."""

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
        """The type and the message of the error, and where it was raised, as an attempt's metadata have them."""
        if self.error is None:
            return None
        where = place_in_user_code(self.error) or self.agent_at
        return describe(self.error) | ({"where": where} if where else {})


def is_fault(error: BaseException) -> bool:
    """Whether an error is a `Fault`, says that a model is out of reach, or is a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_fault, error.exceptions))
    return isinstance(error, Fault) or any(
        (kind.__module__, kind.__qualname__) in OUT_OF_REACH for kind in type(error).__mro__
    )


def describe(error: Exception) -> dict[str, str]:
    """Return an error's type and message, as text that every store can keep, without secrets."""
    shown = traceback.TracebackException(type(error), error, None)  # str(error) may fail in its turn
    message = well_formed(str(shown)) or type(error).__name__
    if (url := _url_of(error)) is not None:
        message += f" ({url}" + (f": {error.__cause__})" if error.__cause__ else ")")
    return {"type": type(error).__name__, "message": hide_in_text(message)}


def place_in_user_code(error: BaseException) -> str:
    """Return where an error passed the user's code last, as `agent.py:12 in score`; empty where it did not.

    Python, installed packages and this one are not the user's.
    """
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = place_of(frame.f_code, line) or place
    return place_in_user_code(error.__cause__) if not place and error.__cause__ is not None else place


def place_of(code: CodeType, line: int) -> str:
    """Return a place in the user's code, as `agent.py:12 in score`; empty for other code."""
    if code.co_filename.startswith(("<", *_NOT_THE_USERS)):
        return ""
    path = Path(code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line} in {code.co_name}"


def _url_of(error: Exception) -> str | None:
    """Return the URL that a model's client could not reach, without what may be secret in it."""
    if not any((kind.__module__, kind.__qualname__) in OUT_OF_REACH for kind in type(error).__mro__):
        return None
    url = urlsplit(str(getattr(getattr(error, "request", None), "url", "")))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else None


_NOT_THE_USERS = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parent.parent) + os.sep,
)
