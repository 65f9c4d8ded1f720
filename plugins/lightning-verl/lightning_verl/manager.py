"""Runs the rollouts that verl's trainer asks for: in the store, for the runners there."""

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lightning_tokens.learning.groups import Lesson, learn_from_group
from lightning_tokens.learning.metrics import training_metrics, validation_metrics
from lightning_tokens.learning.options import LearningOptions
from lightning_tokens.learning.outcomes import EndedRollout
from lightning_tokens.learning.rollouts import (
    cancel_all,
    cancel_unfinished,
    enqueue,
    mean_reward,
    read_all,
    require_rewards,
    require_rows,
)
from lightning_tokens.learning.serving import model_of
from lightning_tokens.learning.steps import group_of

from lightning_core.errors import AlgorithmError
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, Rollout, RolloutConfig, RolloutMode
from lightning_verl.bridge import Bridge, Ending, Enough
from lightning_verl.serving import Serving

if TYPE_CHECKING:
    from tensordict import TensorDict

logger = logging.getLogger(__name__)


class RowSink(Protocol):
    """Where groups go; see `TransferQueueRows`."""

    def begin(self, uid: str, *, partition: str) -> None: ...

    def end(self, uid: str, lesson: Lesson, *, partition: str, step: int) -> None: ...


class Group(NamedTuple):
    """The rollouts of one task."""

    uid: str
    """What verl's trainer calls it: the same when it asks for it again."""
    task: int
    """Its number in the dataset."""


class RolloutManager:
    """verl's agent-loop manager: enqueues groups of rollouts, waits for them, and hands over what is learned.

    `generate_sequences` belongs to the trainer's thread, everything else to the event loop.

    Args:
        store: Where runners look for work.
        bridge: Between the two.
        serving: Which model the agents call.
        tasks: The samples, by partition.
        group_size: How many rollouts a group has, by partition.
        batch_size: How many groups verl learns from at once.
        is_sync: Whether those are all groups of one step.
        options: What is learned, and how.
        key: Names this work within its run: the same one again continues it, and what has ended is not run again.
        config: Limits and retry policy of each rollout.
        adapter: The trainer's.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        bridge: Bridge,
        serving: Serving,
        tasks: Mapping[RolloutMode, Sequence[Any]],
        group_size: Mapping[RolloutMode, int],
        batch_size: int,
        is_sync: bool = True,
        options: LearningOptions,
        key: str,
        config: RolloutConfig | None = None,
        adapter: object = None,
    ) -> None:
        self._store = store
        self._bridge = bridge
        self._sink: RowSink | None = None
        self.ending = Ending()
        """Ends groups early: they are not judged then, whatever the result of their calls."""
        self._serving = serving
        self._tasks = tasks
        self._group_size = group_size
        self.options = options
        """What is learned, and how."""
        self._key = key
        self._config = config
        self._adapter = adapter
        self._fruitless = _Fruitless(batch_size, is_sync=is_sync)
        self._lessons: dict[str, Lesson] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._unfinished: set[str] = set()
        self._has_warned = False

    # To be overridden

    def learn(self, rollouts: Sequence[EndedRollout]) -> Lesson:
        """Judge the rollouts of one task by each other; called in a thread.

        A subclass may change what it passes on: rewards, by `dataclasses.replace`, or which rollouts there are.

        Args:
            rollouts: All of a group, in the order of their samples; they have ended.

        Returns:
            The rows to train on, with what each answer is worth.
        """
        return learn_from_group(rollouts, options=self.options)

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

    # In the event loop

    async def take_metrics(self, keys: Iterable[str], *, waiting: Container[str]) -> dict[str, float]:
        """Return what there is to say of a step.

        It is of the groups that it learned from, and of those dropped since the last one, each told of once. A group
        that verl gave up by itself is forgotten: verl counts those.

        Args:
            keys: Of the rows that the step learned from.
            waiting: The groups that a later step may learn from, by `uid`.
        """
        learned = {group_of(key) for key in keys}
        lessons: list[Lesson] = []
        kept: dict[str, Lesson] = {}
        for uid, lesson in self._lessons.items():
            if uid in learned or lesson.dropped is not None:
                lessons.append(lesson)
            elif uid in waiting:
                kept[uid] = lesson
        self._lessons = kept
        return training_metrics(lessons, options=self.options) if lessons else {}

    async def validate(self, resources: NamedResources, *, step: int) -> dict[str, float]:
        """Run the validation set, and return what it says.

        Args:
            resources: What the agents are given.
            step: How many steps the model has learned from.

        Raises:
            NoRewards: When not one rollout gave a reward.
        """
        ended = await self._measured("val", resources, step=step, what=f"validation at step {step}")
        size = self._group_size["val"]
        named = [_source(task) for task in self._tasks["val"] for _ in range(size)]
        sources = named if len(set(named) - {None}) > 1 else None
        tasks = [task for task in range(len(self._tasks["val"])) for _ in range(size)]
        return validation_metrics(ended, sources=sources, tasks=tasks)

    async def test(self, resources: NamedResources, *, step: int) -> float:
        """Run the held-out samples, and return the mean reward; see `validate`."""
        what = f"the test on held-out samples at step {step}"
        return mean_reward(await self._measured("test", resources, step=step, what=what))

    async def cancel_left(self) -> None:
        """Cancel what a process that was killed has left unfinished, also of a training with another config."""
        await cancel_unfinished(self._store)

    async def cancel_rest(self) -> None:
        """Cancel rollouts that were begun for a step that does not come any more."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await cancel_all(self._store, self._unfinished)

    async def aclose(self) -> None:
        """Stop waiting for rollouts. They go on where they are executed."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _begin(self, groups: Sequence[Group], *, step: int) -> None:
        sink = self._sink
        if sink is None:
            raise AlgorithmError("rollouts were asked for before it was said where their rows go; call write_to")
        # By groups, and without the step: one that was not finished at a checkpoint is asked for in a later one.
        enqueued = [self._enqueue("train", [group.task], step, f"{group.uid}/{group.task}") for group in groups]
        for group, [members] in zip(groups, await asyncio.gather(*enqueued), strict=True):
            await asyncio.to_thread(sink.begin, group.uid, partition="train")
            task = asyncio.create_task(self._run_group(group, members, step, sink), name=f"group {group.uid}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _enqueue(
        self,
        partition: RolloutMode,
        tasks: Iterable[int],
        step: int,
        name: str,
        resources: NamedResources | None = None,
    ) -> list[list[Rollout]]:
        groups = await enqueue(
            self._store,
            {task: self._tasks[partition][task] for task in tasks},
            partition,
            times=self._group_size[partition],
            step=step,
            resources_id=await self._serving.resources_id(resources or self._serving.training()),
            config=self._config,
            key=self._key,
            name=name,
        )
        self._unfinished.update(rollout.rollout_id for group in groups for rollout in group)
        return groups

    async def _run_group(self, group: Group, rollouts: Sequence[Rollout], step: int, sink: RowSink) -> None:
        try:
            await self.ending.unless(self._learn(group, rollouts, step, sink))
        except Enough:  # a run that continues asks for it again
            return
        except Exception as exc:
            self._bridge.stop(exc)
        else:
            self._bridge.tell()

    async def _learn(self, group: Group, rollouts: Sequence[Rollout], step: int, sink: RowSink) -> None:
        ended = await self._ended(rollouts, self._serving.training())
        lesson = await asyncio.to_thread(self.learn, ended)
        self._lessons[group.uid] = lesson
        if lesson.dropped is not None:
            is_first = not self._has_warned and any(each.made.too_long for each in ended)
            self._has_warned |= is_first
            level = logging.WARNING if is_first else logging.INFO
            why = f"{lesson.dropped}{'; training/n_groups_dropped counts further ones' if is_first else ''}"
            logger.log(level, "lightning_verl.group_dropped step=%d task=%d: %s", step, group.task, why)
        self._fruitless.take(lesson, step=step)
        if any(row.versions is None for row in lesson.rows):
            raise AlgorithmError(
                f"step {step}: the calls of task {group.task} do not say with which weights they were answered; "
                "agents have to call the proxy of this run"
            )
        await asyncio.to_thread(sink.end, group.uid, lesson, partition="train", step=step)

    async def _ended(self, rollouts: Sequence[Rollout], resources: NamedResources) -> list[EndedRollout]:
        """Wait for rollouts that were given these resources, and read how they went."""
        ended = await read_all(
            rollouts,
            store=self._store,
            proxy=self._serving.proxy,
            options=self.options,
            adapter=self._adapter,
            other_models=self._serving.other_models(self._serving.name, model_of(resources)),
        )
        self._unfinished.difference_update(rollout.rollout_id for rollout in rollouts)
        return ended

    async def _measured(
        self, partition: RolloutMode, resources: NamedResources, *, step: int, what: str
    ) -> list[EndedRollout]:
        groups = await self._enqueue(partition, range(len(self._tasks[partition])), step, str(step), resources)
        ended = await self._ended([rollout for members in groups for rollout in members], resources)
        require_rewards(ended, what)
        return ended


class _Fruitless:
    """The groups in a row of which nothing is learned; tells when they are as many as verl learns from at once.

    verl cannot go on then; and where failures have a value, it would go on with nothing but that. Where it learns from
    all groups of a step, only those of the same step count.
    """

    def __init__(self, size: int, *, is_sync: bool) -> None:
        self._size = size
        self._is_sync = is_sync
        self._step = 0
        self._unscored: list[Lesson] = []
        self._empty: list[Lesson] = []

    def take(self, lesson: Lesson, *, step: int) -> None:
        """Count a group.

        Raises:
            NoRewards: When not one rollout of a whole batch gave a reward.
            AlgorithmError: When there is no row to learn from in a whole batch.
        """
        if self._is_sync and step != self._step:
            self._step, self._unscored, self._empty = step, [], []
        is_scored = any(rollout.was_scored for rollout in lesson.rollouts)
        self._unscored = [] if is_scored else [*self._unscored, lesson]
        self._empty = [] if lesson.rows else [*self._empty, lesson]
        if len(self._unscored) >= self._size:
            require_rewards([rollout for each in self._unscored for rollout in each.rollouts], f"step {step}")
        if len(self._empty) >= self._size:
            require_rows(self._empty, f"step {step}")


def _source(task: Any) -> str | None:
    source = task.get("data_source") if isinstance(task, Mapping) else None
    return source if isinstance(source, str) else None
