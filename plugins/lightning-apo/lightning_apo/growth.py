"""One round of edits: each branch goes its way, from training samples to an edit that has been tried out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from lightning_apo.candidate import Candidate, Texts
from lightning_apo.experiment import Experiment
from lightning_apo.models import Answer, ModelFailed, why_unusable
from lightning_apo.samples import seed_of, shuffled
from lightning_apo.tools import Tools
from lightning_core.algorithm import Batch

T = TypeVar("T")


async def concurrently(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results, in the order given.

    Nothing is left running: when one raises, or the caller is cancelled, the others are cancelled and awaited.

    Raises:
        Exception: What the first one to fail raised, as it is, and not in a group.
    """
    failure: Exception | None = None
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]


class SingleFlight(Generic[T]):
    """Does what has the same key once; other callers wait for the result.

    When the one that does it fails, those that wait are cancelled: all of them have one owner, which ends them anyway.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, asyncio.Future[T]] = {}

    async def __call__(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` gives, or gave before for this key."""
        if key in self._results:
            return await asyncio.shield(self._results[key])
        future = self._results[key] = asyncio.get_running_loop().create_future()
        try:
            result = await work()
        except BaseException:
            future.cancel()
            raise
        future.set_result(result)
        return result


logger = logging.getLogger(__name__)

Key = tuple[str, ...]
"""The texts of a candidate: equal prompts are one candidate."""


class Rejected(str):
    """Why an edit cannot be used."""


Edit = Candidate | Rejected | ModelFailed
"""The result of a branch."""


def key_of(texts: Texts) -> Key:
    """Return what tells candidates apart."""
    return tuple(texts.values())


class Growth:
    """The edits of one round.

    No branch waits for another one. A parent is run once on training samples, which all its branches learn from, and
    an edit that several branches come to is one candidate. The result of a branch does not depend on the others.

    Args:
        tools: What the search works with.
        round_number: Counts the rounds, from 1.
        known: The candidates of earlier rounds.
    """

    def __init__(self, tools: Tools, *, round_number: int, known: Mapping[Key, Candidate]) -> None:
        self._tools = tools
        self._round = round_number
        self._known = known
        self._edited = tools.options.edited_in(round_number, list(tools.prompts))
        self._others = [name for name in tools.prompts if name not in self._edited]
        self._entered: SingleFlight[Candidate] = SingleFlight()
        self._batches: dict[int, Batch] = {}

    @property
    def batches(self) -> list[Batch]:
        """The rollouts of the round on training samples."""
        return [self._batches[number] for number in sorted(self._batches)]

    async def run(self, branches: Mapping[Candidate, int]) -> list[tuple[Candidate, Edit]]:
        """Edit each parent as often as it says.

        Returns:
            The result of each branch, with its parent, in the order of the parents and of their branches.
        """
        grown = await concurrently(self._grow(parent, count) for parent, count in branches.items())
        return [(parent, edit) for parent, edits in zip(branches, grown, strict=True) for edit in edits]

    async def _grow(self, parent: Candidate, branches: int) -> list[Edit]:
        tools = self._tools
        seed = seed_of("training", tools.options.seed, self._round, *key_of(parent.texts))
        samples = shuffled(len(tools.train), seed=seed)[: tools.options.gradient_batch_size]
        batch = await tools.trials.run(parent, tools.train, samples, mode="train", step=f"{self._round}")
        self._batches[parent.number] = batch
        experiments = [Experiment.from_outcome(outcome, tools.adapter) for outcome in batch.outcomes]
        return await concurrently(self._branch(parent, branch, experiments) for branch in range(branches))

    async def _branch(self, parent: Candidate, branch: int, experiments: Sequence[Experiment]) -> Edit:
        try:
            texts = await self._edit(parent, experiments, branch)
        except ModelFailed as exc:
            self._tools.counts["lost_branches"] += 1
            logger.warning(
                "lightning.apo_branch_lost round=%d parent=%d branch=%d: %s", self._round, parent.number, branch, exc
            )
            return exc
        for name in self._edited:
            if reason := why_unusable(texts[name], self._tools.prompt(name, parent)):
                logger.info("lightning.apo_edit_rejected parent=%d prompt=%s: %s", parent.number, name, reason)
                return Rejected(reason)
        key = key_of(texts)

        async def enter() -> Candidate:
            # Where several parents come to the same texts, the store has the first of them as its parent.
            return self._known.get(key) or await self._tools.trials.enter(texts, parent)

        return await self._entered(key, enter)

    async def _edit(self, parent: Candidate, experiments: Sequence[Experiment], branch: int) -> Texts:
        """Have a critique made, and each prompt that it is about edited accordingly."""
        tools = self._tools
        key: tuple[str | int, ...] = (tools.options.seed, self._round, *key_of(parent.texts), branch)
        place = f"{parent.number}/{branch}"
        reviewed = {name: tools.shown(name, parent) for name in self._edited}
        others = {name: tools.shown(name, parent) for name in self._others}

        async def criticise() -> Answer:
            return await tools.critic.criticise(
                list(reviewed.values()),
                experiments,
                other_prompts=list(others.values()),
                seed=seed_of("critique", *key),
            )

        tools.counts["critic_calls"] += 1
        critique = tools.spent_on(await tools.saved.once(f"{place}/critique", criticise))

        async def rewrite(name: str) -> Answer:
            beside = [shown for other, shown in {**reviewed, **others}.items() if other != name]
            seed = seed_of("edit", *key, name)
            return await tools.editor.rewrite(reviewed[name], critique, other_prompts=beside, seed=seed)

        async def edited(name: str) -> str:
            tools.counts["editor_calls"] += 1
            return tools.spent_on(await tools.saved.once(f"{place}/edit/{name}", lambda: rewrite(name)))

        answers = await concurrently(edited(name) for name in self._edited)
        return {**parent.texts, **dict(zip(self._edited, answers, strict=True))}
