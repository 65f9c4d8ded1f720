"""Tracers that cannot work in one process: whichever comes second is refused, with the reason.

Libraries that patch the same functions can take spans from each other without a word. A tracer that knows of such a
library holds a claim between its `init` and its `teardown`:

    def _turn_on(self, undo):
        undo.enter_context(claim_process("agentops", not_beside={"weave": "both patch the OpenAI client"}))
        super()._turn_on(undo)
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lightning_core.errors import TracerError

_NONE: Mapping[str, str] = MappingProxyType({})

_lock = threading.Lock()
_held: list[tuple[str, Mapping[str, str]]] = []


@contextmanager
def claim_process(name: str, *, not_beside: Mapping[str, str] = _NONE) -> Iterator[None]:
    """Say that a tracer is at work in this process, for a `with` block.

    It is enough that one of two says that they cannot work together. Tracers of one name can, as many as there are.
    A process that is forked has the claims of its parent.

    Args:
        name: The tracer's name, as its entry point has it.
        not_beside: The names of tracers that it cannot work beside, and why.

    Raises:
        TracerError: When one that it cannot work beside is at work; it names both, and the reason.
    """
    claim = (name, not_beside)
    with _lock:
        for other, reasons in _held:
            reason = not_beside.get(other) or reasons.get(name)
            if reason and other != name:
                raise TracerError(
                    f"tracer {name!r} cannot work in a process in which tracer {other!r} is at work: {reason}; "
                    f"tear {other!r} down first, or use each in a process of its own"
                )
        _held.append(claim)
    try:
        yield
    finally:
        with _lock:
            _held.remove(claim)
