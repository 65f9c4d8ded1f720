"""The rollouts that an algorithm learns from: enqueued, awaited and read, each once also after a kill."""

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning_proxy import LLMProxy
from lightning_proxy.outbox import CallsLost

from lightning_core.algorithm.batch import wait_for_all
from lightning_core.errors import InvalidTransition, StoreUnavailable
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode, Span
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout, is_lost, read_rollout


class Rollouts:
    """Runs the agent on tasks, several times each.

    Args:
        store: Where runners look for work.
        proxy: What the agents' calls go through.
        key: Names this work within its run: the same one again continues it, and what has ended is not run again.
        options: How rollouts are read.
        config: Limits and retry policy of each rollout.
        adapter: The trainer's.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        proxy: LLMProxy,
        key: str,
        options: LearningOptions,
        config: RolloutConfig | None = None,
        adapter: object = None,
    ) -> None:
        self._store = store
        self._proxy = proxy
        self._key = key
        self._options = options
        self._config = config
        self._adapter = adapter

    async def run(
        self,
        tasks: Mapping[int, Any],
        mode: RolloutMode,
        *,
        times: int = 1,
        step: int,
        resources_id: str,
        name: str,
        other_models: Container[str] = (),
    ) -> list[list[EndedRollout]]:
        """Run the agent on tasks, and return how its rollouts went, by task.

        Args:
            tasks: By their numbers in the dataset.
            mode: What the rollouts are for.
            times: How often each is run.
            step: How many steps the model has learned from.
            resources_id: What the agents are given.
            name: Of this batch within the work: the same again continues it.
            other_models: See `read_rollout`.
        """
        requests = [
            EnqueueRolloutRequest(
                input=task,
                mode=mode,
                resources_id=resources_id,
                config=self._config,
                metadata={"work": self._key, "step": step, "task": number, "sample": sample},
            )
            for number, task in tasks.items()
            for sample in range(times)
        ]
        request_id = f"{self._key}/{mode}/{name}"
        ids = [rollout.rollout_id for rollout in await enqueue_unless_lost(self._store, requests, request_id)]
        read = partial(read_rollout, options=self._options, adapter=self._adapter, other_models=other_models)
        ended = [
            await asyncio.to_thread(read, rollout, await record_of(rollout, store=self._store, proxy=self._proxy))
            for rollout in await wait_for_all(self._store, ids)
        ]
        return [ended[begin : begin + times] for begin in range(0, len(ended), times)]


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


async def enqueue_unless_lost(
    store: LightningStore, requests: Sequence[EnqueueRolloutRequest], request_id: str
) -> list[Rollout]:
    """Enqueue rollouts, or find those of before a kill; those that it left unfinished are enqueued again.

    Args:
        store: Where runners look for work.
        requests: What to run.
        request_id: Of this batch: the same again finds what there is.
    """
    rollouts = list(await store.enqueue_many_rollouts(requests, request_id=request_id))
    while lost := [place for place, rollout in enumerate(rollouts) if await _is_lost(store, rollout)]:
        # Left unfinished by a kill, or done without its proxy.
        request_id = f"{request_id}/{rollouts[lost[0]].rollout_id}"
        again = await store.enqueue_many_rollouts([requests[place] for place in lost], request_id=request_id)
        for place, rollout in zip(lost, again, strict=True):
            rollouts[place] = rollout
    return rollouts


async def _is_lost(store: LightningStore, rollout: Rollout) -> bool:
    if rollout.status != "failed":
        return is_lost(rollout)
    return is_lost(await store.get_rollout_by_id(rollout.rollout_id) or rollout)


async def record_of(rollout: Rollout, *, store: LightningStore, proxy: LLMProxy) -> Sequence[Span] | str:
    """Return what the last attempt of a rollout has recorded, or why the store will not have all of it."""
    if isinstance(rollout, AttemptedRollout) and proxy.is_running():
        try:
            await proxy.flush(rollout.rollout_id, rollout.attempt.attempt_id)
        except (CallsLost, StoreUnavailable) as exc:  # a store that is gone for good says so itself
            return str(exc)
    return await store.query_spans(rollout.rollout_id, "latest")
