"""Run the agent on many inputs and learn how it went: the step that every algorithm is made of."""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from lightning_core.errors import AgentTimeout, AlgorithmError, InvalidRequest, InvalidTransition, NoRewards, NotFound
from lightning_core.rewards import final_reward_in, find_final_reward, sound_final_reward
from lightning_core.store import LightningStore
from lightning_core.store.records import digest_of
from lightning_core.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
)

_KEPT_BACK = "lightning_core.kept_back"
"""Under this name the metadata of a rollout say that its sample was kept back."""


def is_kept_back(rollout: Rollout) -> bool:
    """Whether the algorithm that asked for a rollout neither learns from its sample nor chooses by it."""
    return _KEPT_BACK in (rollout.metadata or {})


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """How one rollout went."""

    rollout: Rollout
    """The rollout, ended."""
    spans: Sequence[Span]
    """What its last attempt recorded."""
    reward: float | None
    """The last primary reward of a rollout that succeeded; None when it gave none, a broken one, or did not succeed."""

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt, None when there was none."""
        return self.rollout.attempt if isinstance(self.rollout, AttemptedRollout) else None

    @property
    def failure(self) -> str | None:
        """Why there is no reward, in one line; None when there is one."""
        if self.reward is not None:
            return None
        if self.rollout.status == "succeeded":
            try:
                if (value := find_final_reward(self.spans)) is not None:
                    return f"the reward is {value}; rewards are finite"
            except ValueError as exc:  # it has a broken reward
                return str(exc)
        return describe_failure(self.rollout)


@dataclass(frozen=True, slots=True)
class Batch:
    """How the rollouts of one batch went, in the order of their inputs."""

    outcomes: Sequence[RolloutOutcome]

    @property
    def rewards(self) -> list[float]:
        """The rewards of those that gave one."""
        return [outcome.reward for outcome in self.outcomes if outcome.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        """The mean of the rewards; None when there are none. What failed is lost, it is not a reward of zero."""
        rewards = self.rewards
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def lost(self) -> int:
        """How many rollouts gave no reward."""
        return len(self.outcomes) - len(self.rewards)


async def run_batch(
    store: LightningStore,
    inputs: Iterable[Any],
    *,
    mode: RolloutMode,
    resources_id: str | None = None,
    config: RolloutConfig | None = None,
    timeout_seconds: float | None = None,
    request_id: str | None = None,
    kept_back: bool = False,
) -> Batch:
    """Run the agent on each input, and wait for all of them.

    What fails is lost. What a fault of the infrastructure befell is run again, by the store. When this is cancelled,
    what is queued stays queued and what runs goes on.

    Args:
        store: Where runners look for work.
        inputs: One task each.
        mode: What the rollouts are for.
        resources_id: The resources that the agent uses; None for the latest ones.
        config: Limits and retry policy of each rollout.
        timeout_seconds: The longest wait for the whole batch; None for no limit. What has not ended by then is
            cancelled, and lost.
        request_id: Names the batch within its run. The same one again, with the same inputs, continues it: an
            algorithm that is started anew after a kill need not run again what has ended. None for a new batch.
        kept_back: Whether the algorithm keeps these samples back: it neither learns from them nor chooses by them.
            Without held-out samples the run's result is compared on them alone.
    """
    metadata = {_KEPT_BACK: True} if kept_back else None
    requests = [
        EnqueueRolloutRequest(input=each, mode=mode, resources_id=resources_id, config=config, metadata=metadata)
        for each in inputs
    ]
    rollout_ids = [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests, request_id=request_id)]
    ended = {
        rollout.rollout_id: rollout
        for rollout in await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout_seconds)
    }
    outcomes = []
    for rollout_id in rollout_ids:
        rollout = ended.get(rollout_id) or await _cancel(store, rollout_id)
        spans = list(await store.query_spans(rollout_id, "latest"))
        outcomes.append(RolloutOutcome(rollout, spans, _reward_of(rollout, spans)))
    return Batch(outcomes)


def require_rewards(batches: Iterable[Batch], *, step: str) -> None:
    """Stop an algorithm that has nothing to learn from.

    Args:
        batches: All batches of one step.
        step: What the step was, for the message.

    Raises:
        NoRewards: When not one rollout of all of the batches gave a reward; says the first cause.
    """
    outcomes = [outcome for batch in batches for outcome in batch.outcomes]
    if any(outcome.reward is not None for outcome in outcomes):
        return
    if not outcomes:
        raise NoRewards(f"{step}: there was nothing to run; give a dataset that is not empty")
    raise NoRewards(f"{step}: none of {len(outcomes)} rollouts gave a reward; the first: {outcomes[0].failure}")


async def reward_of(store: LightningStore, rollout: Rollout) -> float | None:
    """Return the reward of a rollout; None where it gave none, a broken one, or has not succeeded.

    Its attempt's metadata have it. Where they do not, as in a store of an earlier version, its spans are read.
    """
    if (known := _known_reward(rollout)) is not None:
        return known
    if rollout.status != "succeeded" or not isinstance(rollout, AttemptedRollout):
        return None
    return sound_final_reward(await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id))


def _reward_of(rollout: Rollout, spans: Sequence[Span]) -> float | None:
    if (known := _known_reward(rollout)) is not None:
        return known
    return sound_final_reward(spans) if rollout.status == "succeeded" else None


def _known_reward(rollout: Rollout) -> float | None:
    if rollout.status != "succeeded" or not isinstance(rollout, AttemptedRollout):
        return None
    return final_reward_in(rollout.attempt.metadata)


def describe_failure(rollout: Rollout) -> str:
    """Say in one line why a rollout gave no reward."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    failure = (attempt.metadata or {}).get("failure") if attempt is not None else None
    if isinstance(failure, dict):
        return f"{failure.get('type')}: {' '.join(str(failure.get('message')).split())}"
    metadata = (attempt.metadata or {}) if attempt is not None else {}
    fault = metadata.get("given_up", metadata.get("fault"))
    if fault is not None and rollout.status == "failed":
        return f"fault: {' '.join(str(fault).split())}"
    if rollout.status == "succeeded" and "imported_from" in (rollout.metadata or {}):
        return "it was imported without a reward"
    if rollout.status == "succeeded":
        return "the agent gave no reward: return a number, or call emit_reward"
    if attempt is not None and attempt.status == "timeout" and rollout.config.timeout_seconds is not None:
        # In the runner's words: the store may have noticed it first.
        return f"{AgentTimeout.__name__}: {AgentTimeout(rollout.config.timeout_seconds)}"
    if attempt is None:
        return f"rollout {rollout.status} before a runner took it"
    return f"rollout {rollout.status}, its last attempt {attempt.status}"


async def _cancel(store: LightningStore, rollout_id: str) -> Rollout:
    try:
        return await store.update_rollout(rollout_id, status="cancelled")
    except InvalidTransition:  # it ended just now
        (ended,) = await wait_for_all(store, [rollout_id])
        return ended


async def store_resources(store: LightningStore, resources: NamedResources | None, *, key: str) -> str | None:
    """Add resources to a store, once for each key and content; return their id, None without any.

    Those of a run that is continued may be others: a prompt that was edited, a proxy with another address.
    """
    if resources is None:
        return None
    added = await store.add_resources(resources, request_id=f"{key}/resources/{digest_of(resources)}")
    return added.resources_id


async def wait_for_all(store: LightningStore, rollout_ids: Sequence[str]) -> Sequence[Rollout]:
    """Return rollouts when all of them have ended.

    Raises:
        NotFound: When the store has one of them no more.
    """
    ended = await store.wait_for_rollouts(rollout_ids=rollout_ids)
    if gone := set(rollout_ids) - {rollout.rollout_id for rollout in ended}:
        raise NotFound(f"run {store.run_id} has no rollout {', '.join(sorted(gone))}; was it deleted meanwhile?")
    return ended


@asynccontextmanager
async def continued(store: LightningStore, name: str, *, of: Any) -> AsyncIterator[str]:
    """Give the key of a piece of work, for the `request_id` of all that it asks of the store.

    Where the same work was begun in this run and was killed, cancelled or ended by a fault, such as of the store, that
    is the key it had: what it asked for is there already. Work that came to its end is begun anew. Where it ended in an
    `AlgorithmError`, as where no rollout gave a reward, in `NotFound`, where it was deleted, or in `InvalidRequest`,
    where it was changed, the key has a `+` more: all is asked anew, and what the key without it names is gone on with.

    Args:
        store: Where the key is kept.
        name: Which piece of work of the run this is.
        of: What it is done to, as JSON has it. Another `of` is other work.
    """
    state = await store.load_state(name)
    if not isinstance(state, dict) or state["ended"] or state["of"] != of:
        state = {"key": secrets.token_hex(8), "of": of, "ended": False}
        await store.save_state(name, state)
    try:
        yield state["key"]
    except (AlgorithmError, InvalidRequest, NotFound):
        await store.save_state(name, {**state, "key": f"{state['key']}+"})
        raise
    await store.save_state(name, {**state, "ended": True})
