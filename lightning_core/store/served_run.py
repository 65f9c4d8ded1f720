"""Which run of a store a server goes on with: the one that it served last, unless that has ended."""

import time
from typing import Final, NamedTuple

from lightning_core.store.base import LightningStore
from lightning_core.store.run_end import RUN_STATE

SERVED_STATE: Final = "lightning.served"
"""Under which name it is kept, among the saved state of a run, when it was served last."""


class ServedRun(NamedTuple):
    """A store for the run that is to be served."""

    store: LightningStore
    """What was given, or a view of it."""
    goes_on: bool
    """Whether an earlier process has left the run."""


async def served_run(store: LightningStore) -> ServedRun:
    """Choose the run that a server goes on with, when nobody has named one.

    Args:
        store: What is served, for a run of its own, which is new.

    Returns:
        The store for the latest run that has not ended: the one that was served last, where several are left. Where
        there is none, the store as it is.
    """
    chosen, latest = None, -1.0
    for run_id in await store.kept_runs():
        view = store.for_run(run_id)
        try:
            if _is_ended(await view.load_state(RUN_STATE)):
                continue
            served_at = float(await view.load_state(SERVED_STATE) or 0.0)
        finally:
            await view.aclose()
        if served_at >= latest:
            chosen, latest = run_id, served_at
    return ServedRun(store, False) if chosen is None else ServedRun(store.for_run(chosen), True)


async def note_served(store: LightningStore) -> None:
    """Keep that this run is served now, so that it is found again, also when nothing else is ever written of it."""
    await store.save_state(SERVED_STATE, time.time())


def _is_ended(run_state: object) -> bool:
    return isinstance(run_state, dict) and bool(run_state.get("ended"))
