"""Who is told of the changes of which run, for backends that make them known themselves."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from lightning_core.store.backend import Change


class Listeners:
    """Listeners by run. Any thread may add one, take it away, or tell them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: defaultdict[str, list[Callable[[Change], None]]] = defaultdict(list)

    def add(self, run_id: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Tell the listener of this run's changes, until the returned function is called."""
        with self._lock:
            self._by_run[run_id].append(listener)

        def stop() -> None:
            with self._lock:
                listeners = self._by_run.get(run_id, [])
                if listener in listeners:
                    listeners.remove(listener)
                if not listeners:
                    self._by_run.pop(run_id, None)

        return stop

    def runs(self) -> list[str]:
        """Return the runs that somebody listens to."""
        with self._lock:
            return list(self._by_run)

    def tell(self, changes: Sequence[Change]) -> None:
        """Tell whoever listens to the runs of these changes."""
        for change in changes:
            with self._lock:
                listeners = tuple(self._by_run.get(change.run_id, ()))
            for listener in listeners:
                listener(change)
