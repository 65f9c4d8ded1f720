"""The rollouts that an algorithm learns from: each is run once, also after a kill."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from lightning_proxy import LLMProxy
from lightning_proxy.outbox import CallsLost

from lightning_core.algorithm.batch import wait_for_all
from lightning_core.errors import AlgorithmError, InvalidTransition, NoRewards, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode, Span
from lightning_tokens.learning.groups import Lesson
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout, is_lost, read_rollout


async def cancel_unfinished(store: LightningStore) -> None:
    """Cancel what a process that was killed has left unfinished: the model that it was given is not there now.

    What is still wanted is enqueued again when its step comes.
    """
    left = await store.query_rollouts(status_in=("queuing", "requeuing", "preparing", "running"))
    await cancel_all(store, (each.rollout_id for each in left if "work" in (each.metadata or {})))


async def cancel_all(store: LightningStore, rollout_ids: Iterable[str]) -> None:
    """Cancel those rollouts that have not ended."""
    for rollout_id in rollout_ids:
        try:
            await store.update_rollout(rollout_id, status="cancelled")
        except InvalidTransition:  # it ended just now
            continue


async def enqueue(
    store: LightningStore,
    tasks: Mapping[int, Any],
    mode: RolloutMode,
    *,
    times: int,
    step: int,
    resources_id: str,
    config: RolloutConfig | None,
    key: str,
    name: str,
) -> list[list[Rollout]]:
    """Enqueue tasks, or find their rollouts of before a kill; those that it left unfinished are enqueued again.

    Args:
        store: Where runners look for work.
        tasks: By their numbers in the dataset.
        mode: What the rollouts are for.
        times: How often each is run.
        step: How many steps the model has learned from.
        resources_id: What the agents are given.
        config: Limits and retry policy of each rollout.
        key: Names the work within its run.
        name: Of this batch within the work: the same continues it, and what has ended is not run again.

    Returns:
        The rollouts of each task.
    """
    requests = [
        EnqueueRolloutRequest(
            input=task,
            mode=mode,
            resources_id=resources_id,
            config=config,
            metadata={"work": key, "step": step, "task": number, "sample": sample},
        )
        for number, task in tasks.items()
        for sample in range(times)
    ]
    request_id = f"{key}/{mode}/{name}"
    rollouts = list(await store.enqueue_many_rollouts(requests, request_id=request_id))
    while lost := [place for place, rollout in enumerate(rollouts) if await _is_lost(store, rollout)]:
        # Left unfinished by a kill, or done without its proxy.
        request_id = f"{request_id}/{rollouts[lost[0]].rollout_id}"
        again = await store.enqueue_many_rollouts([requests[place] for place in lost], request_id=request_id)
        for place, rollout in zip(lost, again, strict=True):
            rollouts[place] = rollout
    return [rollouts[begin : begin + times] for begin in range(0, len(rollouts), times)]


async def _is_lost(store: LightningStore, rollout: Rollout) -> bool:
    if rollout.status != "failed":
        return is_lost(rollout)
    return is_lost(await store.get_rollout_by_id(rollout.rollout_id) or rollout)


async def read_all(
    rollouts: Iterable[Rollout],
    *,
    store: LightningStore,
    proxy: LLMProxy,
    options: LearningOptions,
    adapter: object,
    other_models: Collection[str],
) -> list[EndedRollout]:
    """Wait for rollouts, and read how they went; see `read_rollout`."""
    read = partial(read_rollout, options=options, adapter=adapter, other_models=other_models)
    return [
        await asyncio.to_thread(read, each, await record_of(each, store=store, proxy=proxy))
        for each in await wait_for_all(store, [rollout.rollout_id for rollout in rollouts])
    ]


async def record_of(rollout: Rollout, *, store: LightningStore, proxy: LLMProxy) -> Sequence[Span] | str:
    """Return what the last attempt of a rollout has recorded, or why the store will not have all of it."""
    if isinstance(rollout, AttemptedRollout) and proxy.is_running():
        try:
            await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
        except (CallsLost, StoreUnavailable) as exc:  # a store that is gone for good says so itself
            return str(exc)
    return await store.query_spans(rollout.rollout_id, "latest")


def mean_reward(ended: Iterable[EndedRollout]) -> float:
    """Return the mean of the rewards that agents gave."""
    return fmean(rollout.reward for rollout in ended if rollout.was_scored and rollout.reward is not None)


def require_rewards(ended: Sequence[EndedRollout], what: str) -> None:
    """Refuse rollouts of which not one gave a reward.

    Args:
        ended: The rollouts.
        what: What they are, for the message.

    Raises:
        NoRewards: Says the first cause.
    """
    if not any(rollout.was_scored for rollout in ended):
        cause = next((rollout.cause for rollout in ended if rollout.cause), "there was nothing to run")
        raise NoRewards(f"{what}: none of {len(ended)} rollouts gave a reward; the first: {cause}")


def require_rows(lessons: Sequence[Lesson], what: str) -> None:
    """Refuse groups of which not one has a row to learn from.

    Args:
        lessons: One or more.
        what: What they are, for the message.

    Raises:
        AlgorithmError: Says the first reason.
    """
    if not any(lesson.rows for lesson in lessons):
        ended = [rollout for lesson in lessons for rollout in lesson.rollouts]
        first = next((rollout.refusal for rollout in ended if rollout.refusal), lessons[0].dropped)
        raise AlgorithmError(f"{what}: nothing can be learned from any of {len(ended)} rollouts; the first: {first}")
