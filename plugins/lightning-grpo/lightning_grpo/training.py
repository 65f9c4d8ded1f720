"""One training: rollouts, a step, now and then a validation and a checkpoint, until the last step."""

import asyncio
import logging
import random
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lightning_tokens.learning.groups import Lesson, learn_from_group
from lightning_tokens.learning.metrics import training_metrics, validation_metrics
from lightning_tokens.learning.outcomes import EndedRollout
from lightning_tokens.learning.rollouts import enqueue, mean_reward, read_all, require_rewards, require_rows

from lightning_core.algorithm import Algorithm
from lightning_core.runs.standing import MIN_SHARED
from lightning_core.types import NamedResources, RolloutMode
from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy
from lightning_grpo.serving import Serving
from lightning_grpo.step import learn

logger = logging.getLogger(__name__)

_STATE = "state.pt"


class Best(NamedTuple):
    """The weights that are best by validation; without one, those saved last."""

    step: int
    rewards: dict[int, float]
    """The last of each validation sample that had one."""
    model: str
    """The folder, or the model that the training began with."""


class Training(Serving):
    """One training, and the policy that it serves while it lasts. Belongs to one event loop.

    Args:
        algorithm: Its store, its proxy, and where reports go.
        policy: The model.
        options: What it is.
        data: The samples, by what they are for.
        key: Names the work within its run.
        folder: Where checkpoints are kept, and continued from where there is one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        *,
        options: TrainingOptions,
        data: dict[RolloutMode, list[Any]],
        key: str,
        folder: Path,
    ) -> None:
        # What was measured before a failure is still that of the model.
        super().__init__(algorithm, policy, options=options, key=key.rstrip("+"), folder=folder)
        self._work = key
        self._data = data
        self._best: Best | None = None
        self._metrics: dict[str, float] = {}
        """Of the last step."""
        self._has_dropped = False
        self._has_been_equal = False

    async def run(self) -> None:
        """Train to the last step, from the last checkpoint where there is one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if (state := self._folder / _STATE).exists():
            record = await asyncio.to_thread(self._policy.load_state, state)
            step, rewards, _ = record["best"]
            self._best = Best(step, dict(rewards or {}), self._model_of(step))  # the folder may have been moved
            self._metrics = record["metrics"]
        begun = (await self._store.query_rollouts(limit=0)).total
        self._policy.begin(self._policy.version, begun)  # of a group that a kill cut short no answer is sampled twice
        initial, _ = await self.serve(self._options.model)
        self._algorithm.set_initial_resources(initial)
        if self._best is not None:
            best, _ = await self.serve(self._best.model)
            self._algorithm.report({}, best_resources=best)
            if self._is_due and self._data["val"] and "val/reward" not in self._metrics:  # the budget ended in it
                await self._validate_and_save()
            self._report_step()  # what was killed before it did; what is there already is not written again
        if self._policy.version == 0:
            if self._data["test"]:
                self._algorithm.report({"test_reward_initial": await self._test(self._options.model)})
            if self._data["val"]:
                self._algorithm.report(await self._validate())
        try:
            while self._policy.version < self._options.steps:
                await self._step(self._policy.version + 1)
        except asyncio.CancelledError:
            budget = self._algorithm.get_budget()
            if budget is not None and (budget.refused is not None or budget.is_time_over):
                await asyncio.to_thread(self._policy.rest)
                if self._policy.version:
                    await self._save()
            raise
        await self._end()

    async def _step(self, step: int) -> None:
        _, groups = await self._run("train", self._tasks(step), self._name, times=self._options.group_size)
        await self.change(partial(self._learn, groups, step))
        if self._is_due:
            await self._validate_and_save()
        self._report_step()

    @property
    def _is_due(self) -> bool:
        """Whether the present weights are to be validated and kept."""
        step = self._policy.version
        return step == self._options.steps or step % self._options.validate_every == 0

    async def _validate_and_save(self) -> None:
        if self._data["val"]:
            self._metrics |= await self._validate()
        await self._save()

    async def _run(
        self, mode: RolloutMode, tasks: Mapping[int, Any], model: str, *, times: int = 1
    ) -> tuple[NamedResources, list[list[EndedRollout]]]:
        """Run the agent on tasks, several times each, with the present weights; what had ended before a kill counts.

        Return what the agents were given, and how the rollouts of each task went.
        """
        resources, resources_id = await self.serve(model)
        step = self._policy.version
        groups = await enqueue(
            self._store,
            tasks,
            mode,
            times=times,
            step=step,
            resources_id=resources_id,
            config=self._algorithm.get_rollout_config(),
            key=self._work,
            name=str(step),
        )
        ended = await read_all(
            [rollout for group in groups for rollout in group],
            store=self._store,
            proxy=self.proxy,
            options=self._options.learning,
            adapter=self._algorithm._adapter,
            other_models=self.other_models(),
        )
        return resources, [ended[begin : begin + times] for begin in range(0, len(ended), times)]

    def _learn(self, groups: Sequence[Sequence[EndedRollout]], step: int) -> None:
        learning = self._options.learning
        lessons = [learn_from_group(group, options=learning) for group in groups]
        self._require_rows(lessons, step)
        with self._policy.lock:
            metrics = learn(self._policy, lessons, options=self._options, version=step)
            self._metrics = training_metrics(lessons, options=learning) | metrics

    def _report_step(self) -> None:
        self._algorithm.report(self._metrics, step=self._policy.version)

    async def _end(self) -> None:
        """Measure the best weights on the held-out samples."""
        assert self._best is not None  # the last step has saved some
        if self._best.step != self._policy.version and self._best.step:
            await self.change(partial(self._policy.load, Path(self._best.model), self._best.step))
        best, _ = await self.serve(self._best.model)
        self._algorithm.report({}, best_resources=best)
        if self._data["test"] and self._best.step:
            self._algorithm.report({"test_reward": await self._test(self._best.model)})

    def _tasks(self, step: int) -> dict[int, Any]:
        """Return the tasks of a step, by their numbers: each epoch in an order of its own, without its rest."""
        train, size = self._data["train"], self._options.batch_size
        epoch, place = divmod(step - 1, len(train) // size)
        order = random.Random(f"{self._options.seed}/{epoch}").sample(range(len(train)), len(train))
        return {number: train[number] for number in order[place * size : (place + 1) * size]}

    def _model_of(self, step: int) -> str:
        """Return where the model after a step is kept; for 0, what the training began with."""
        return str(self._folder / f"step-{step}") if step else self._options.model

    def _require_rows(self, lessons: Sequence[Lesson], step: int) -> None:
        require_rewards([rollout for lesson in lessons for rollout in lesson.rollouts], f"step {step}")
        require_rows(lessons, f"step {step}")
        dropped = [lesson.dropped for lesson in lessons if lesson.dropped is not None]
        if dropped and not self._has_dropped:
            self._has_dropped = True
            logger.warning(
                "lightning.group_dropped step=%d: %s; others are counted in training/n_groups_dropped", step, dropped[0]
            )
        if not self._has_been_equal and not any(each.has_spread for each in lessons if each.dropped is None):
            self._has_been_equal = True
            logger.warning(
                "lightning.rewards_equal step=%d: within each group all rewards are the same, so nothing is learned "
                "from this step; further groups like this are counted in training/n_groups_wo_spread",
                step,
            )

    async def _validate(self) -> dict[str, float]:
        """Run the validation set with the present weights, and keep them where they are the best."""
        step = self._policy.version
        model = self._model_of(step)
        resources, ended = await self._measure("val", model)
        metrics = validation_metrics(ended, tasks=range(len(ended)))
        rewards = {task: each.reward for task, each in enumerate(ended) if each.reward is not None}
        before = {} if self._best is None else self._best.rewards
        shared = rewards.keys() & before.keys()  # to lose the hard ones gains nothing
        gain = sum(rewards[each] - before[each] for each in shared)
        if len(shared) >= MIN_SHARED * len(before) and (gain, len(rewards)) > (0, len(before)):
            await self._keep_best(Best(step, {**before, **rewards}, model), resources)
        return metrics

    async def _test(self, model: str) -> float:
        _, ended = await self._measure("test", model)
        return mean_reward(ended)

    async def _measure(self, mode: RolloutMode, model: str) -> tuple[NamedResources, list[EndedRollout]]:
        """Run all samples of a kind once; what the agents were given, and how they went."""
        resources, groups = await self._run(mode, dict(enumerate(self._data[mode])), model)
        ended = [rollout for group in groups for rollout in group]
        require_rewards(ended, f"{mode} samples at step {self._policy.version}")
        return resources, ended

    async def _keep_best(self, best: Best, resources: NamedResources) -> None:
        if best.step:
            await asyncio.to_thread(self._policy.save, Path(best.model))
        self._best = best
        self._algorithm.report({}, best_resources=resources)

    async def _save(self) -> None:
        """Write a checkpoint; then older ones go."""
        step = self._policy.version
        if not self._data["val"]:
            model = self._model_of(step)
            resources, _ = await self.serve(model)
            await self._keep_best(Best(step, {}, model), resources)
        assert self._best is not None
        more = {"best": tuple(self._best), "metrics": {name: float(value) for name, value in self._metrics.items()}}
        await asyncio.to_thread(self._policy.save_state, self._folder / _STATE, **more)
        for folder in self._folder.glob("step-*"):
            if str(folder) != self._best.model:
                shutil.rmtree(folder)
