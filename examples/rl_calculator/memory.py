"""How much memory a program and all that it starts hold together."""

import threading
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]

_INTERVAL_SECONDS = 1.0


class PeakMemory:
    """Looks once a second during a `with` block; what processes share counts once, where the system tells."""

    def __init__(self) -> None:
        self.gib = 0.0
        """The most that was held."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        own = psutil.Process()
        while True:
            held = sum(_held_by(each) for each in (own, *own.children(recursive=True)))
            self.gib = max(self.gib, held / 2**30)
            if self._is_over.wait(_INTERVAL_SECONDS):
                return


def _held_by(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:  # it has ended, or is somebody else's
        return 0
    return int(getattr(memory, "pss", memory.uss))
