"""Which attempts are live: only they may call a model."""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.algorithm.own_calls import is_of_algorithm
from lightning_core.errors import LightningError, NotFound, StoreUnavailable
from lightning_core.lifecycle import ENDED
from lightning_core.store import LightningStore
from lightning_core.store.clock import Clock
from lightning_core.types import AttemptedRollout, Rollout
from lightning_proxy.owner import Owner
from lightning_proxy.request import Refused

logger = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""How long it is believed what the store said, and that it is out of reach."""
SHORT_SECONDS = 0.2
"""How long the calls of an attempt that was live wait for what the store says now."""

_STORE_SECONDS = 5.0
_MAX_KNOWN = 20_000
_LIVE = frozenset({"preparing", "running", "unresponsive"})


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the store said of an attempt."""

    at: float
    problem: str | None
    """Why it may not call; None for one that is live."""
    is_of_agent: bool = True


_ENDED = _Verdict(math.inf, "has ended")


@dataclass(frozen=True, slots=True)
class _Question:
    """What the store is being asked. It ends by itself, also without a waiting call."""

    began: float
    task: "asyncio.Task[None]"


class LiveAttempts:
    """Knows from the store which attempts are live.

    Args:
        view: Gives the store of a run.
        clock: Where the time comes from.
    """

    def __init__(self, view: Callable[[str | None], LightningStore], clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._known: OrderedDict[Owner, _Verdict] = OrderedDict()
        self._questions: dict[Owner, _Question] = {}
        self._away_until = -math.inf
        """Until when the store counts as out of reach."""

    def end(self, owner: Owner) -> None:
        """Record that an attempt has ended: no call of it is let through from now on."""
        self._remember(owner, _ENDED)

    async def aclose(self) -> None:
        """Ask nothing more."""
        tasks = [question.task for question in self._questions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_of_agent(self, owner: Owner) -> bool:
        """Whether an attempt is an agent's, as far as is known, and does not keep an algorithm's own calls."""
        known = self._known.get(owner)
        return known is None or known.is_of_agent

    def require_not_ended(self, owner: Owner) -> None:
        """Check that an attempt has not ended since `require`. A call that begins right after it is not too late.

        Raises:
            Refused: When it has.
        """
        if self._known.get(owner) is _ENDED:
            raise _refused(owner, "has ended")

    async def require(self, owner: Owner, *, has_key: bool) -> None:
        """Check that an attempt is live.

        While the store is out of reach, what it said before is believed, and an attempt of which it said nothing is
        believed to be live where the caller has its key.

        Raises:
            Refused: When it is not, or that cannot be known.
        """
        known = self._known.get(owner)
        if known is None or self._clock.now() - known.at >= FRESH_SECONDS:
            was_live = known is not None and known.problem is None
            await self._ask(owner, SHORT_SECONDS if was_live else _STORE_SECONDS)
            known = self._known.get(owner)
        if known is None:
            if not has_key:
                raise Refused(
                    503,
                    "store_unavailable",
                    f"whether attempt {owner.attempt_id!r} is live cannot be told: the store is out of reach",
                    retry_after=1.0,
                )
        elif known.problem is not None:
            raise _refused(owner, known.problem)

    async def _ask(self, owner: Owner, seconds: float) -> None:
        """Ask the store, and wait for its answer, until the question is so many seconds old at most."""
        now = self._clock.now()
        if now < self._away_until:
            return
        question = self._questions.get(owner)
        if question is None:
            task = asyncio.create_task(self._learn(owner), name="whether an attempt is live")
            question = self._questions[owner] = _Question(now, task)
        if await self._clock.wait(question.task, max(0.0, question.began + seconds - now)):
            question.task.result()

    async def _learn(self, owner: Owner) -> None:
        try:
            rollout = await self._rollout(owner)
            is_of_agent = rollout is None or not is_of_algorithm(rollout)
            self._remember(owner, _Verdict(self._clock.now(), _problem(rollout, owner), is_of_agent))
        except (LightningError, TimeoutError) as exc:
            if isinstance(exc, StoreUnavailable | TimeoutError):
                self._away_until = self._clock.now() + FRESH_SECONDS
            logger.warning("lightning.attempt_not_checked attempt_id=%s", owner.attempt_id, exc_info=exc)
        finally:
            del self._questions[owner]

    async def _rollout(self, owner: Owner) -> Rollout | None:
        asking = asyncio.ensure_future(self._view(owner.run_id).get_rollout_by_id(owner.rollout_id))
        try:
            if not await self._clock.wait(asking, _STORE_SECONDS):
                raise TimeoutError(f"the store did not answer within {_STORE_SECONDS:g} s")
            return asking.result()
        except NotFound:
            return None
        finally:
            asking.cancel()

    def _remember(self, owner: Owner, verdict: _Verdict) -> None:
        if self._known.get(owner) is _ENDED:  # which the store may not know yet
            return
        self._known[owner] = verdict
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
