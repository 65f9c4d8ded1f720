"""Tracers that cannot work in one process: whichever comes second is refused, with the reason.

Libraries that patch the same functions can take spans from each other without a word. A tracer that knows of such a
library holds a claim between its `init` and its `teardown`:

    def init(self):
        self._claim = claim_process("agentops", not_beside={"weave": "both patch the OpenAI client"})

    def teardown(self):
        self._claim.release()
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

from lightning_core.errors import TracerError

_NONE: Mapping[str, str] = MappingProxyType({})

_lock = threading.Lock()
_held: "list[ProcessClaim]" = []


class ProcessClaim:
    """That a tracer is at work in this process, until `release`. Also a context manager."""

    def __init__(self, name: str, not_beside: Mapping[str, str]) -> None:
        self.name = name
        self.not_beside = dict(not_beside)

    def __repr__(self) -> str:
        return f"<ProcessClaim of tracer {self.name!r}>"

    def release(self) -> None:
        """Let others work here. Once released, it stays released. Idempotent."""
        with _lock:
            # By identity: claims of one name are as many as there are tracers of it.
            _held[:] = [claim for claim in _held if claim is not self]

    def __enter__(self) -> "ProcessClaim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def claim_process(name: str, *, not_beside: Mapping[str, str] = _NONE) -> ProcessClaim:
    """Say that a tracer is at work in this process from now on.

    It is enough that one of two says that they cannot work together. Tracers of one name can, as many as there are.
    A process that is forked has the claims of its parent.

    Args:
        name: The tracer's name, as its entry point has it.
        not_beside: The names of tracers that it cannot work beside, and why.

    Returns:
        The claim; its caller releases it.

    Raises:
        TracerError: When one that it cannot work beside is at work; it names both, and the reason.
    """
    claim = ProcessClaim(name, not_beside)
    with _lock:
        for other in _held:
            if other.name == name:
                continue
            reason = claim.not_beside.get(other.name) or other.not_beside.get(name)
            if reason:
                raise TracerError(
                    f"tracer {name!r} cannot work in a process in which tracer {other.name!r} is at work: {reason}; "
                    f"tear {other.name!r} down first, or use each in a process of its own"
                )
        _held.append(claim)
    return claim
