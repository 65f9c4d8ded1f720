"""Runs the rollouts that verl's trainer asks for: in the store, as whoever executes them there."""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from lightning_core.errors import AlgorithmError, InvalidTransition, NoRewards
from lightning_core.store import LightningStore
from lightning_core.types import AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig, Span
from lightning_verl.bridge import Bridge
from lightning_verl.learning import (
    EndedRollout,
    FailureWatch,
    LearnedRow,
    LearningOptions,
    Lesson,
    learn_from_group,
    read_rollout,
    training_metrics,
    validation_metrics,
)
from lightning_verl.serving import Serving

if TYPE_CHECKING:
    from tensordict import TensorDict

logger = logging.getLogger(__name__)

Partition = Literal["train", "val"]

_VERSION = "agentlightning.weight_version"


class RowSink(Protocol):
    """Where groups go; see `TransferQueueRows`."""

    def begin(self, uid: str, *, partition: str) -> None: ...

    def end(
        self, uid: str, rows: Sequence[LearnedRow], *, partition: str, step: int, versions: tuple[int, int]
    ) -> None: ...


class Group(NamedTuple):
    """The rollouts of one task."""

    uid: str
    """verl's name for it."""
    task: int
    """Its number in the dataset."""


class RolloutManager:
    """verl's agent-loop manager: enqueues groups of rollouts, waits for them, and hands over what is learned.

    `generate_sequences` and `validate` belong to the trainer's thread, everything else to the event loop.

    Args:
        store: Where runners look for work.
        bridge: Between the two.
        serving: Which model the agents call.
        tasks: The samples, by partition.
        group_size: How many rollouts a group has, by partition.
        options: What is learned, and how.
        key: Names this work within its run: the same one again continues it, and what has ended is not run again.
        config: Limits and retry policy of each rollout.
        adapter: The trainer's.
        is_repeatable: Whether a step asks for the same tasks in the same order when it is taken again.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        bridge: Bridge,
        serving: Serving,
        tasks: Mapping[Partition, Sequence[Any]],
        group_size: Mapping[Partition, int],
        options: LearningOptions,
        key: str,
        config: RolloutConfig | None = None,
        adapter: object = None,
        is_repeatable: bool = True,
    ) -> None:
        self._store = store
        self._bridge = bridge
        self._sink: RowSink | None = None
        self._serving = serving
        self._tasks = tasks
        self._group_size = group_size
        self._options = options
        self._key = key
        self._config = config
        self._adapter = adapter
        self._is_repeatable = is_repeatable
        self._asked: dict[int, int] = {}
        self._lessons: list[Lesson] = []
        self._failures = FailureWatch()
        self._running: set[asyncio.Task[None]] = set()
        self._unfinished: set[str] = set()

    # In the trainer's thread

    def write_to(self, sink: RowSink) -> None:
        """Say where rows go, before any are made."""
        self._sink = sink

    def generate_sequences(self, prompts: "TensorDict") -> None:
        """Begin the rollouts of groups, and return when they are queued. verl calls this.

        Args:
            prompts: `uid` and `index` of each group, and `global_steps`.
        """
        groups = [Group(str(uid), int(task)) for uid, task in zip(prompts["uid"], prompts["index"], strict=True)]
        self._bridge.call(self._begin(groups, step=int(prompts["global_steps"])))

    def validate(self, step: int) -> dict[str, float]:
        """Run the validation set, and return what it says.

        Raises:
            NoRewards: When not one rollout gave a reward.
        """
        return self._bridge.call(self._validate(step))

    # In the event loop

    def take_metrics(self) -> dict[str, float]:
        """Return what there is to say of the groups that ended since the last time."""
        lessons, self._lessons = self._lessons, []
        return training_metrics(lessons, options=self._options) if lessons else {}

    async def cancel_left(self) -> None:
        """Cancel what a process that was killed has left unfinished.

        Nobody could do it now: the model is not there yet. What is still wanted is enqueued anew when its step comes.
        """
        left = await self._store.query_rollouts(status_in=("queuing", "requeuing", "preparing", "running"))
        await self._cancel(each.rollout_id for each in left if (each.metadata or {}).get("work") == self._key)

    async def cancel_rest(self) -> None:
        """Cancel rollouts that were begun for a step that does not come any more."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._cancel(self._unfinished)

    async def aclose(self) -> None:
        """Stop waiting for rollouts. They go on where they are executed."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _cancel(self, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            try:
                await self._store.update_rollout(rollout_id, status="cancelled")
            except InvalidTransition:  # it ended just now
                continue

    async def _begin(self, groups: Sequence[Group], *, step: int) -> None:
        sink = self._sink
        if sink is None:
            raise AlgorithmError("rollouts were asked for before it was said where their rows go; call write_to")
        rollouts = await self._enqueue(groups, "train", step=step, request_id=self._request_id(groups, step))
        for group in groups:
            await asyncio.to_thread(sink.begin, group.uid, partition="train")
        batch = _Batch(len(groups))
        for group, members in zip(groups, rollouts, strict=True):
            task = asyncio.create_task(self._run_group(group, members, step, batch, sink), name=f"group {group.uid}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _request_id(self, groups: Sequence[Group], step: int) -> str:
        """Return a name for a request that is the same when a killed run makes it again."""
        if not self._is_repeatable:
            return f"{self._key}/{groups[0].uid}"
        self._asked = {step: self._asked.get(step, 0) + 1}
        tasks = hashlib.sha256(repr([group.task for group in groups]).encode()).hexdigest()[:16]
        return f"{self._key}/train/{step}/{self._asked[step]}/{tasks}"

    async def _enqueue(
        self, groups: Sequence[Group], partition: Partition, *, step: int, request_id: str
    ) -> list[list[Rollout]]:
        size = self._group_size[partition]
        resources_id = await self._serving.resources_id(partition)
        requests = [
            EnqueueRolloutRequest(
                input=self._tasks[partition][group.task],
                mode=partition,
                resources_id=resources_id,
                config=self._config,
                metadata={"work": self._key, "step": step, "task": group.task, "sample": number},
            )
            for group in groups
            for number in range(size)
        ]
        rollouts = list(await self._store.enqueue_many_rollouts(requests, request_id=request_id))
        while gone := [place for place, rollout in enumerate(rollouts) if rollout.status == "cancelled"]:
            # Asked for before a kill, and left unfinished by it.
            request_id = f"{request_id}/{rollouts[gone[0]].rollout_id}"
            again = await self._store.enqueue_many_rollouts([requests[place] for place in gone], request_id=request_id)
            for place, rollout in zip(gone, again, strict=True):
                rollouts[place] = rollout
        return [list(rollouts[start : start + size]) for start in range(0, len(rollouts), size)]

    async def _run_group(
        self, group: Group, rollouts: Sequence[Rollout], step: int, batch: "_Batch", sink: RowSink
    ) -> None:
        try:
            ended, versions = await self._ended(rollouts, step)
            lesson = await asyncio.to_thread(learn_from_group, ended, options=self._options)
            self._lessons.append(lesson)
            if lesson.dropped is not None:
                logger.info("lightning_verl.group_dropped step=%d task=%d: %s", step, group.task, lesson.dropped)
            if (warning := self._failures.see([lesson])) is not None:
                logger.warning("lightning_verl.failures_depend_on_task %s", warning)
            batch.take(lesson, step=step)
            await asyncio.to_thread(sink.end, group.uid, lesson.rows, partition="train", step=step, versions=versions)
        except Exception as exc:
            self._bridge.stop(exc)
        else:
            self._bridge.tell()

    async def _ended(self, rollouts: Sequence[Rollout], step: int) -> tuple[list[EndedRollout], tuple[int, int]]:
        """Wait for rollouts, and read how they went, and with which weights."""
        ids = [rollout.rollout_id for rollout in rollouts]
        self._unfinished.update(ids)
        ended, versions = [], []
        for rollout in await self._store.wait_for_rollouts(rollout_ids=ids):
            if isinstance(rollout, AttemptedRollout):
                await self._serving.flush(rollout.rollout_id, rollout.attempt.attempt_id)
            spans = await self._store.query_spans(rollout.rollout_id, "latest")
            versions += _versions(spans)
            ended.append(
                await asyncio.to_thread(read_rollout, rollout, spans, options=self._options, adapter=self._adapter)
            )
        self._unfinished.difference_update(ids)
        return ended, (min(versions, default=step - 1), max(versions, default=step - 1))

    async def _validate(self, step: int) -> dict[str, float]:
        groups = [Group(str(number), number) for number in range(len(self._tasks["val"]))]
        rollouts = await self._enqueue(groups, "val", step=step, request_id=f"{self._key}/val/{step}")
        flat = [rollout for members in rollouts for rollout in members]
        ended, _ = await self._ended(flat, step)
        if all(each.reward is None for each in ended):
            raise NoRewards(f"validation at step {step}: {_no_rewards(ended)}")
        size = self._group_size["val"]
        named = [_source(task) for task in self._tasks["val"] for _ in range(size)]
        sources = named if len(set(named) - {None}) > 1 else None
        return validation_metrics(ended, sources=sources)


class _Batch:
    """The groups that were asked for together; tells when nothing is learned from any of them."""

    def __init__(self, size: int) -> None:
        self._missing = size
        self._lessons: list[Lesson] = []

    def take(self, lesson: Lesson, *, step: int) -> None:
        """Count a group.

        Raises:
            NoRewards: When it is the last one, and not one rollout gave a reward.
            AlgorithmError: When it is the last one, and there is no row to learn from.
        """
        self._missing -= 1
        self._lessons.append(lesson)
        if self._missing or any(each.rows for each in self._lessons):
            return
        ended = [rollout for each in self._lessons for rollout in each.rollouts]
        if all(rollout.reward is None for rollout in ended):
            raise NoRewards(f"step {step}: {_no_rewards(ended)}")
        first = next((rollout.refusal for rollout in ended if rollout.refusal), None) or self._lessons[0].dropped
        raise AlgorithmError(
            f"step {step}: nothing can be learned from any of {len(ended)} rollouts; the first: {first}"
        )


def _no_rewards(ended: Sequence[EndedRollout]) -> str:
    cause = next((rollout.cause for rollout in ended if rollout.cause), "there was nothing to run")
    return f"none of {len(ended)} rollouts gave a reward; the first: {cause}"


def _versions(spans: Sequence[Span]) -> list[int]:
    found = (span.attributes.get(name) for span in spans for name in (_VERSION, f"{_VERSION}.end"))
    return [int(version) for version in found if isinstance(version, str) and version.isdecimal()]


def _source(task: Any) -> str | None:
    source = task.get("data_source") if isinstance(task, Mapping) else None
    return source if isinstance(source, str) else None
