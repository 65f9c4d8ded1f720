"""Reads the rollouts of a run page by page, and takes them into `Aggregates`."""

import asyncio
from collections.abc import Collection, Sequence

from lightning_core.adapter.usage import Usage, usage_in
from lightning_core.algorithm.batch import reward_of
from lightning_core.lifecycle import ENDED
from lightning_core.rewards import final_reward_in
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, Rollout
from lightning_viewer.aggregates import Aggregates

PAGE_SIZE = 1_000
"""How many rollouts are read at once."""

CHECKED_AT_ONCE = 250
"""Of how many ended rollouts one look at a store that does not tell of changes asks whether the reward is another."""


async def read_aggregates(store: LightningStore) -> Aggregates:
    """Read a run whole: its resources, and its rollouts page by page, so that few of them are held at once."""
    aggregates = Aggregates()
    aggregates.put_resources(await store.query_resources())
    offset = 0
    while page := await store.query_rollouts(limit=PAGE_SIZE, offset=offset):
        await _put(store, aggregates, page)
        offset += len(page)
    return aggregates


async def _put(store: LightningStore, aggregates: Aggregates, rollouts: Sequence[Rollout]) -> None:
    for each in rollouts:
        aggregates.put(each, await reward_of(store, each), earlier=await _earlier_usage(store, each))


async def _earlier_usage(store: LightningStore, rollout: Rollout) -> Usage | None:
    if not isinstance(rollout, AttemptedRollout) or rollout.attempt.sequence_id < 2:
        return None
    attempts = await store.query_attempts(rollout.rollout_id)
    return sum((usage_in(each.metadata) for each in attempts[:-1]), Usage())


class Follower:
    """Keeps `Aggregates` up to date with a store. One caller at a time."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.known = Aggregates()
        """What is known by now."""
        self._open: set[str] = set()
        """The rollouts that have not ended."""
        self._seen = 0
        self._newest: str | None = None
        self._versions = 0
        self._checked = 0
        """The place of the ended rollout that is checked next."""
        self._unchecked = 0

    @property
    def is_checking(self) -> bool:
        """Whether `check_all` is not through yet."""
        return self._unchecked > 0

    def check_all(self) -> None:
        """Have the next updates check the rewards of all ended rollouts once: a judge may give one late."""
        self._unchecked = self._seen + CHECKED_AT_ONCE

    async def update(self, store: LightningStore, told: Collection[str] | None = None) -> set[str]:
        """Read what is new, and what has changed.

        Args:
            store: Where the rollouts are.
            told: The ids of those that the store says have changed; None where it does not say, so that all are read
                again that had not ended, and some others are checked, in turn.

        Returns:
            The ids of rollouts that are new or have changed, without those of the algorithm's own calls.
        """
        again = sorted(self._open if told is None else filter(self._knows, told))
        changed: list[Rollout] = []
        for start in range(0, len(again), PAGE_SIZE):
            changed += await store.query_rollouts(rollout_id_in=again[start : start + PAGE_SIZE])
        if len(changed) < len(again) or not await self._read_new(store, changed):
            self._reset()  # some were deleted: the others have other places now
            return await self.update(store)
        if told is None:
            changed += await self._next_ended(store)
        versions = (await store.query_resources(limit=0)).total
        if versions != self._versions or not all(self.known.knows_resources(each.resources_id) for each in changed):
            self.known.put_resources(await store.query_resources())
            self._versions = versions
        before = {each.rollout_id: self.known.row(each.rollout_id) for each in changed}
        for start in range(0, len(changed), PAGE_SIZE):
            await _put(store, self.known, changed[start : start + PAGE_SIZE])
            await asyncio.sleep(0)  # others come in between: the store may be in this very event loop
        self._open.difference_update(each.rollout_id for each in changed if each.status in ENDED)
        self._open.update(each.rollout_id for each in changed if each.status not in ENDED)
        return {rollout_id for rollout_id, row in before.items() if self.known.row(rollout_id) != row}

    async def _next_ended(self, store: LightningStore) -> list[Rollout]:
        """Return those of the next rollouts to which a judge has given another reward."""
        page = await store.query_rollouts(limit=CHECKED_AT_ONCE, offset=self._checked)
        self._checked = self._checked + len(page) if len(page) == CHECKED_AT_ONCE else 0
        self._unchecked -= CHECKED_AT_ONCE
        return [each for each in page if each.status == "succeeded" and self._has_another_reward(each)]

    def _has_another_reward(self, rollout: Rollout) -> bool:
        row = self.known.row(rollout.rollout_id)
        if row is None or not isinstance(rollout, AttemptedRollout):
            return False
        return final_reward_in(rollout.attempt.metadata) not in (None, row["reward"])

    def _knows(self, rollout_id: str) -> bool:
        return rollout_id in self._open or self.known.row(rollout_id) is not None

    async def _read_new(self, store: LightningStore, rollouts: list[Rollout]) -> bool:
        """Read the rollouts that are new; return False where the last one that was read is not in its place."""
        while True:
            items = list(await store.query_rollouts(limit=PAGE_SIZE, offset=max(0, self._seen - 1)))
            if self._newest is not None and (not items or items.pop(0).rollout_id != self._newest):
                return False
            if not items:
                return True
            rollouts += items
            self._seen += len(items)
            self._newest = items[-1].rollout_id
            await asyncio.sleep(0)
