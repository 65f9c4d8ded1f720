"""Which attempts are live: only they may call a model."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from lightning_core.errors import LightningError, NotFound
from lightning_core.lifecycle import ENDED
from lightning_core.proxy.owner import Owner
from lightning_core.proxy.refusals import Refused
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.types import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""How long it is believed what the store said."""

_STORE_SECONDS = 5.0
_MAX_KNOWN = 20_000
_LIVE = frozenset({"preparing", "running", "unresponsive"})


class LiveAttempts:
    """Knows from the store which attempts are live.

    Args:
        view: Gives the store of a run.
        clock: Where the time comes from.
    """

    def __init__(self, view: Callable[[str | None], LightningStore], clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._known: OrderedDict[Owner, float] = OrderedDict()
        """When an attempt was live by the store's word; minus one for one that has ended."""

    def end(self, owner: Owner) -> None:
        """Take note that an attempt has ended: no call of it is let through from now on."""
        self._remember(owner, -1.0)

    async def require(self, owner: Owner, *, has_key: bool) -> None:
        """Check that an attempt is live.

        While the store is out of reach, one that was live before is believed to be, and one whose key the caller has.

        Raises:
            Refused: When it is not, or nobody can tell.
        """
        seen = self._known.get(owner)
        if seen is not None and seen >= 0 and self._clock.now() - seen < FRESH_SECONDS:
            return
        if seen == -1.0:
            raise _refused(owner, "has ended")
        try:
            rollout = await self._ask(owner)
        except NotFound:
            rollout = None
        except (LightningError, TimeoutError) as exc:
            if seen is None and not has_key:
                raise Refused(
                    503,
                    "store_unavailable",
                    f"whether attempt {owner.attempt_id!r} is live cannot be told: the store is out of reach",
                    retry_after=1.0,
                ) from exc
            logger.warning("lightning.attempt_not_checked attempt_id=%s", owner.attempt_id, exc_info=exc)
            return
        problem = _problem(rollout, owner)
        if problem is not None:
            self._known.pop(owner, None)
            raise _refused(owner, problem)
        self._remember(owner, self._clock.now())

    async def _ask(self, owner: Owner) -> Rollout | None:
        asking = asyncio.ensure_future(self._view(owner.run_id).get_rollout_by_id(owner.rollout_id))
        try:
            if not await self._clock.wait(asking, _STORE_SECONDS):
                raise TimeoutError(f"the store did not answer within {_STORE_SECONDS:g} s")
            return asking.result()
        finally:
            asking.cancel()

    def _remember(self, owner: Owner, seen: float) -> None:
        self._known[owner] = seen
        self._known.move_to_end(owner)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


def _problem(rollout: Rollout | None, owner: Owner) -> str | None:
    if rollout is None:
        return "is unknown: the store has no such rollout"
    if not isinstance(rollout, AttemptedRollout) or rollout.attempt.attempt_id != owner.attempt_id:
        return "is not the newest attempt of its rollout"
    if rollout.status in ENDED:
        return f"has ended: its rollout is {rollout.status!r}"
    if rollout.attempt.status not in _LIVE or "fault" in (rollout.attempt.metadata or {}):
        return f"has ended: it is {rollout.attempt.status!r}"
    return None


def _refused(owner: Owner, problem: str) -> Refused:
    return Refused(
        403,
        "attempt_not_live",
        f"attempt {owner.attempt_id!r} of rollout {owner.rollout_id!r} {problem}; only a live attempt may call a model",
    )
