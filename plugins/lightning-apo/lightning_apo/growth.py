"""The edits of one round: each branch goes its way, from training samples to edits of edits."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lightning_apo.candidate import Candidate, Texts
from lightning_apo.experiment import Experiment
from lightning_apo.inputs import seed_of, shuffled
from lightning_apo.messages import ShownPrompt
from lightning_apo.models import Answer, ModelFailed, PromptModel, unwrapped, why_unusable
from lightning_apo.plan import Options
from lightning_apo.tools import Setting
from lightning_core.algorithm import Batch

logger = logging.getLogger(__name__)

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


_ASKED_AT_ONCE = 8
"""Endpoints refuse requests where more come at once than they serve, and clients give up soon."""

Key = tuple[str, ...]
"""The texts of a candidate: equal prompts are one candidate."""


class Rejected(str):
    """Why an edit cannot be used."""


Edit = Texts | Rejected | ModelFailed
"""What became of one edit."""

Step = tuple[Texts, Edit]
"""What was edited, and the result."""


def key_of(texts: Texts) -> Key:
    """Return what tells candidates apart."""
    return tuple(texts.values())


COUNTED = (
    "rejected",
    "duplicates",
    "lost_branches",
    "lost_rounds",
    "critic_calls",
    "editor_calls",
    "own_input_tokens",
    "own_output_tokens",
)


@dataclass(kw_only=True, slots=True)
class Tools(Setting):
    """All that a search and its rounds share."""

    options: Options
    critic: PromptModel
    editor: PromptModel


class Growth:
    """The edits of one round.

    A branch is one critique of a prompt of the beam, and `branch_factor` edits by it. Each is made from that prompt, or
    from one of the edits before it, as the seed draws it; it waits for that one only. Where a model fails, or its edit
    cannot be used, what was to be made from the edit is made from its parent. A critique that fails takes the place of
    an edit, and is asked for once more. A prompt is run once on training samples, which all its critiques are made
    from. The result of a branch does not depend on the others, so several may come to the same texts.

    Args:
        tools: What the search works with.
        round_number: Counts the rounds, from 1.
    """

    def __init__(self, tools: Tools, *, round_number: int) -> None:
        self._tools = tools
        self._round = round_number
        self._edited = tools.options.edited_in(round_number, list(tools.prompts))
        self._batches: dict[int, Batch] = {}
        self._models = asyncio.Semaphore(_ASKED_AT_ONCE)

    @property
    def batches(self) -> list[Batch]:
        """The rollouts of the round on training samples."""
        return [self._batches[number] for number in sorted(self._batches)]

    async def run(self, branches: Mapping[Candidate, int]) -> list[Step]:
        """Begin as many branches at each prompt as it says.

        Returns:
            The edits with their parents, which come before them, in the order of the prompts and of their branches.
        """
        grown = await concurrently(self._grow(start, count) for start, count in branches.items())
        return [step for of_prompt in grown for of_branch in of_prompt for step in of_branch]

    async def _grow(self, start: Candidate, branches: int) -> list[list[Step]]:
        tools = self._tools
        seed = seed_of("training", tools.options.seed, self._round, *key_of(start.texts))
        samples = shuffled(len(tools.train), seed=seed)[: tools.options.gradient_batch_size]
        batch = await tools.trials.run(start, tools.train, samples, mode="train", step=f"{self._round}")
        self._batches[start.number] = batch
        experiments = [Experiment.from_outcome(outcome, tools.adapter) for outcome in batch.outcomes]
        return await concurrently(self._branch(start, branch, experiments) for branch in range(branches))

    async def _branch(self, start: Candidate, branch: int, experiments: Sequence[Experiment]) -> list[Step]:
        n_edits, root = self._tools.options.branch_factor, -1
        places = [f"{start.number}/{branch}/{number}" for number in range(n_edits)]
        keys: list[tuple[str | int, ...]] = [
            (self._tools.options.seed, self._round, *key_of(start.texts), branch, n) for n in range(n_edits)
        ]
        steps: dict[int, Step] = {}
        critique: str | None = None
        for number in range(min(2, n_edits)):
            try:
                critique = await self._criticise(start, experiments, places[number], seed_of("critique", *keys[number]))
                break
            except ModelFailed as exc:
                steps[number] = start.texts, self._lost(places[number], exc)
        if critique is None:
            return list(steps.values())
        numbers = range(len(steps), n_edits)
        made_from = {n: [root, *numbers[:at]][seed_of("parent", *keys[n]) % (at + 1)] for at, n in enumerate(numbers)}

        async def edit(number: int, parent: Texts) -> None:
            result: Edit
            try:
                result = await self._edit(parent, critique, places[number], keys[number])
            except ModelFailed as exc:
                result = self._lost(places[number], exc)
            steps[number] = parent, result
            await edit_on(number, parent if isinstance(result, Rejected | ModelFailed) else result)

        async def edit_on(parent: int, texts: Texts) -> None:
            await concurrently(edit(number, texts) for number in numbers if made_from[number] == parent)

        await edit_on(root, start.texts)
        return [steps[number] for number in sorted(steps)]

    def _lost(self, place: str, failure: ModelFailed) -> ModelFailed:
        self._tools.counts["lost_branches"] += 1
        logger.warning("lightning.apo_branch_lost round=%d edit=%s: %s", self._round, place, failure)
        return failure

    async def _criticise(self, start: Candidate, experiments: Sequence[Experiment], place: str, seed: int) -> str:
        tools = self._tools
        reviewed, others = self._shown(start.texts)

        async def criticise() -> Answer:
            async with self._models:
                return await tools.critic.write(
                    prompt=reviewed, experiments=experiments, other_prompts=others, seed=seed
                )

        tools.counts["critic_calls"] += 1
        return tools.spent_on(await tools.saved.once(f"{place}/critique", criticise))

    async def _edit(self, parent: Texts, critique: str, place: str, key: tuple[str | int, ...]) -> Edit:
        """Have the prompt edited that the critique is about."""
        tools, name = self._tools, self._edited
        prompt, others = self._shown(parent)

        async def rewrite() -> Answer:
            seed = seed_of("edit", *key, name)
            async with self._models:
                answer = await tools.editor.write(prompt=prompt, critique=critique, other_prompts=others, seed=seed)
            return answer._replace(text=unwrapped(answer.text))

        tools.counts["editor_calls"] += 1
        # Failures are not saved: after a resume there may be another parent in this place, or another critique.
        asked = seed_of(critique, *key_of(parent))
        text = tools.spent_on(await tools.saved.once(f"{place}/edit/{name}/{asked}", rewrite))
        if reason := why_unusable(text, tools.prompt(name, parent[name])):
            logger.info("lightning.apo_edit_rejected place=%s prompt=%s: %s", place, name, reason)
            return Rejected(reason)
        return {**parent, name: text}

    def _shown(self, texts: Texts) -> tuple[ShownPrompt, list[ShownPrompt]]:
        """Return the prompt that is edited in this round as models are shown it, and the others."""
        shown = {name: self._tools.shown(name, text) for name, text in texts.items()}
        return shown.pop(self._edited), list(shown.values())
