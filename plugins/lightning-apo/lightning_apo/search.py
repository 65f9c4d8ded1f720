"""The beam search."""

import logging
from collections import Counter
from collections.abc import Iterable

from lightning_apo.beam import branches_of
from lightning_apo.candidate import Candidate, best_against, best_first, compare
from lightning_apo.chat import ModelFailed
from lightning_apo.concurrency import concurrently
from lightning_apo.critic import Critic
from lightning_apo.editor import Editor, why_unusable
from lightning_apo.experiment import Experiment
from lightning_apo.options import Options
from lightning_apo.samples import deal
from lightning_apo.seeds import seed_of
from lightning_apo.trials import Trials
from lightning_core.algorithm import Batch, require_rewards
from lightning_core.errors import AlgorithmError
from lightning_core.types import Dataset, PromptTemplate, TaskInput

logger = logging.getLogger(__name__)

Edit = str | ModelFailed
"""What came of a branch: the text of a new template, or why there is none."""


class BeamSearch:
    """Searches for a better prompt, step by step: `begin`, `advance` for each round, `conclude`.

    This is the beam search of Pryzant et al. 2023 (arXiv 2305.03495, section 2.2). There a bandit algorithm decides
    how often each candidate is tried. Here all candidates of a round are tried on the same validation samples, what
    a prompt scored in earlier rounds counts on, and the last choice is made on the whole validation set.

    Nothing depends on the order in which rollouts and models come to an end.
    """

    def __init__(
        self,
        options: Options,
        *,
        trials: Trials,
        critic: Critic,
        editor: Editor,
        train_dataset: Dataset[TaskInput],
        val_dataset: Dataset[TaskInput],
    ) -> None:
        self._options = options
        self._trials = trials
        self._critic = critic
        self._editor = editor
        self._train_dataset = train_dataset
        self._val_dataset = val_dataset
        self._candidates: dict[str, Candidate] = {}
        self._beam: list[Candidate] = []
        self._counts: Counter[str] = Counter(rejected=0, duplicates=0, lost_branches=0)
        self._figures: dict[str, float] = {}

    @property
    def best(self) -> Candidate:
        """The best candidate so far; the first prompt before anything was measured."""
        return self._best

    @property
    def metrics(self) -> dict[str, float]:
        """How the search stands; `APO` says what each figure is."""
        return {**self._figures, "candidates": len(self._candidates), "lost": self._trials.lost, **self._counts}

    async def begin(self, prompt: PromptTemplate) -> None:
        """Enter the first prompt, and measure it on the whole validation set if the options ask for it.

        Raises:
            NoRewards: When it is measured, and no rollout gave a reward.
        """
        self._first = self._best = await self._enter(prompt)
        self._beam = [self._first]
        if self._options.run_initial_validation:
            batches = await self._validate(self._beam, range(len(self._val_dataset)))
            require_rewards(batches, step="validation of the first prompt")
            self._take_stock()

    async def advance(self, round_number: int) -> None:
        """Run one round: edit the prompts of the beam, try the edits, keep the best.

        Args:
            round_number: Counts the rounds, from 1.

        Raises:
            NoRewards: When no rollout of the round gave a reward.
            AlgorithmError: When no model gave an answer in the whole round.
        """
        options = self._options
        branches = branches_of(self._beam, beam_width=options.beam_width, branch_factor=options.branch_factor)
        grown = await concurrently(
            self._grow(parent, count, round_number=round_number) for parent, count in branches.items()
        )
        self._require_answers([edit for _, edits in grown for edit in edits], round_number=round_number)
        children = [
            child
            for parent, (_, edits) in zip(branches, grown, strict=True)
            for edit in edits
            if isinstance(edit, str) and (child := await self._adopt(edit, parent)) is not None
        ]
        pool = list(dict.fromkeys([*self._beam, *children]))
        samples = deal(
            len(self._val_dataset),
            options.val_batch_size,
            round_number - 1,
            seed=seed_of("validation", options.seed),
        )
        val_batches = await self._validate(pool, samples)
        ranked = best_first(pool)
        train_batches = [batch for batch, _ in grown]
        require_rewards([*train_batches, *val_batches] if ranked else val_batches, step=f"round {round_number}")
        self._beam = ranked[: options.beam_width]
        self._take_stock()
        logger.info(
            "lightning.apo_round_ended round=%d best=%d val_reward=%.4f beam=%s",
            round_number,
            self._best.number,
            self._best.score,
            [candidate.number for candidate in self._beam],
        )

    async def conclude(self) -> None:
        """Measure the last beam on the whole validation set, and choose the best of it and of the first prompt.

        The first prompt takes part if it was measured on the whole validation set. Then the two rewards in the
        metrics are means over the same samples: those that gave both prompts a reward.
        """
        await self._validate(self._beam, range(len(self._val_dataset)))
        if not self._is_measured(self._first):
            self._take_stock()
            return
        self._best = best_against(self._first, self._beam)
        comparison = compare(self._best, self._first)
        assert comparison is not None  # the best of all has at least the first prompt's samples to be compared on
        self._figures = {
            "val_reward": comparison.mean,
            "val_reward_initial": comparison.reference_mean,
            "val_samples": comparison.samples,
        }

    async def _grow(self, parent: Candidate, branches: int, *, round_number: int) -> tuple[Batch, list[Edit]]:
        """Try a parent on training samples, and edit it once for each branch, from other samples each time."""
        options, text = self._options, parent.prompt.template
        hands = [
            deal(
                len(self._train_dataset),
                options.gradient_batch_size,
                branch,
                seed=seed_of("training", options.seed, round_number, text),
            )
            for branch in range(branches)
        ]
        samples = list(dict.fromkeys(sample for hand in hands for sample in hand))
        batch = await self._trials.run(parent, self._train_dataset, samples, mode="train")
        experiments = {
            sample: Experiment.from_outcome(outcome) for sample, outcome in zip(samples, batch.outcomes, strict=True)
        }
        edits = await concurrently(
            self._edit(parent, [experiments[sample] for sample in hand], round_number=round_number, branch=branch)
            for branch, hand in enumerate(hands)
        )
        return batch, edits

    async def _edit(self, parent: Candidate, experiments: list[Experiment], *, round_number: int, branch: int) -> Edit:
        key = (self._options.seed, round_number, parent.prompt.template, branch)
        try:
            critique = await self._critic.criticise(parent.prompt, experiments, seed=seed_of("critique", *key))
            return await self._editor.rewrite(parent.prompt, critique, seed=seed_of("edit", *key))
        except ModelFailed as exc:
            self._counts["lost_branches"] += 1
            logger.warning(
                "lightning.apo_branch_lost round=%d parent=%d branch=%d: %s", round_number, parent.number, branch, exc
            )
            return exc

    def _require_answers(self, edits: list[Edit], *, round_number: int) -> None:
        failures = [edit for edit in edits if isinstance(edit, ModelFailed)]
        if len(failures) == len(edits):
            raise AlgorithmError(
                f"round {round_number}: none of {len(edits)} edits was made; the first: {failures[0]}. "
                "Check the endpoint, its key, gradient_model and apply_edit_model"
            ) from failures[0]

    async def _adopt(self, text: str, parent: Candidate) -> Candidate | None:
        """Return the candidate of an edit, the one there is already if the text is known; None for a broken one."""
        if reason := why_unusable(text, parent.prompt):
            self._counts["rejected"] += 1
            logger.info("lightning.apo_edit_rejected parent=%d: %s", parent.number, reason)
            return None
        if text in self._candidates:
            self._counts["duplicates"] += 1
            return self._candidates[text]
        return await self._enter(PromptTemplate(template=text, engine=parent.prompt.engine))

    async def _enter(self, prompt: PromptTemplate) -> Candidate:
        candidate = await self._trials.enter(prompt, number=len(self._candidates))
        self._candidates[prompt.template] = candidate
        return candidate

    async def _validate(self, candidates: Iterable[Candidate], samples: Iterable[int]) -> list[Batch]:
        """Try candidates on validation samples, each on those that it was not tried on before."""
        missing = {each: [sample for sample in samples if sample not in each.rewards] for each in candidates}
        tried = [candidate for candidate in missing if missing[candidate]]
        batches = await concurrently(
            self._trials.run(candidate, self._val_dataset, missing[candidate], mode="val") for candidate in tried
        )
        for candidate, batch in zip(tried, batches, strict=True):
            rewards = [outcome.reward for outcome in batch.outcomes]
            candidate.rewards.update(zip(missing[candidate], rewards, strict=True))
        return batches

    def _take_stock(self) -> None:
        """Choose the best so far, by what each was tried on so far."""
        is_measured = self._is_measured(self._first)
        ranked = best_first(dict.fromkeys([self._first, *self._beam] if is_measured else self._beam))
        self._best = ranked[0]
        figures = {"val_reward": self._best.score}
        figures["val_samples"] = sum(reward is not None for reward in self._best.rewards.values())
        if is_measured:
            figures["val_reward_initial"] = self._first.score
        self._figures = {name: value for name, value in figures.items() if value is not None}

    def _is_measured(self, candidate: Candidate) -> bool:
        """Tell whether a candidate was tried on the whole validation set, and gave a reward."""
        return candidate.score is not None and len(candidate.rewards) == len(self._val_dataset)
