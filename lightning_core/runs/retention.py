"""Gives up what was said in rollouts that an algorithm has learned from."""

from lightning_core.lifecycle import ENDED
from lightning_core.store import LightningStore

_AT_ONCE = 100


class Retention:
    """Hooks that drop the content of the spans of a run, but for its newest steps; see `LightningStore.drop_content`.

    A step is what the algorithm reports as one. A rollout that still runs when its turn comes keeps its content.

    Args:
        store: The store of the run.
        keep_spans: How many steps, at least, keep their spans as they are.
    """

    stays_with_algorithm = True
    """Only there a step ends."""

    def __init__(self, store: LightningStore, keep_spans: int) -> None:
        self._store = store
        self._keep_spans = keep_spans
        self._rollouts_after: list[int] = []
        """How many rollouts there were after each of the newest steps: its own, and maybe some of the next one."""
        self._done = 0

    async def lightning_step_end(self) -> None:
        """Drop what is older than the steps to keep."""
        self._rollouts_after.append((await self._store.query_rollouts(limit=0)).total)
        if len(self._rollouts_after) <= self._keep_spans + 1:
            return
        until = self._rollouts_after.pop(0)
        while self._done < until:
            page = await self._store.query_rollouts(limit=min(_AT_ONCE, until - self._done), offset=self._done)
            await self._store.drop_content([each.rollout_id for each in page if each.status in ENDED])
            self._done += _AT_ONCE
        self._done = until
