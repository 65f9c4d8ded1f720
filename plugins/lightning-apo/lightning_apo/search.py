"""The beam search."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_apo.candidate import Candidate, Result, best_first, compare
from lightning_apo.growth import Edit, Growth, Key, Rejected, concurrently, key_of
from lightning_apo.models import ModelFailed
from lightning_apo.samples import deal, seed_of
from lightning_apo.tools import Tools
from lightning_core.algorithm import Batch, describe_failure, require_rewards
from lightning_core.algorithm.estimates import estimate
from lightning_core.errors import AlgorithmError, NoRewards


def branches_of(beam: Sequence[Candidate], *, beam_width: int, branch_factor: int) -> dict[Candidate, int]:
    """Say how many children each prompt of the beam gets.

    Every place of the beam gives `branch_factor` children. Places that are still empty go to the prompts that are
    there, the best ones first, so that a search that starts from one prompt begins as broadly as it goes on.
    """
    branches = dict.fromkeys(beam, 0)
    for place in range(beam_width):
        branches[beam[place % len(beam)]] += branch_factor
    return branches


logger = logging.getLogger(__name__)


class BeamSearch:
    """Searches for better prompts, step by step: `begin`, `advance` for each round, `conclude`.

    This is the beam search of Pryzant et al. 2023 (arXiv 2305.03495, section 2.2). There a bandit algorithm decides
    how often each candidate is tried. Here all candidates of a round are tried on the same validation samples and
    compared on these, and the last choice is made on the whole validation set.

    Nothing depends on the order in which rollouts and models come to an end. `state` after a step is all that a new
    search needs to go on from there, see `restore`.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._candidates: dict[Key, Candidate] = {}
        self._beam: list[Candidate] = []
        self.round_number = 0
        """The round that has ended last, from 1; 0 before the first."""

    @property
    def best(self) -> Candidate:
        """The best candidate so far; the first prompts before anything was measured."""
        return self._best

    @property
    def result(self) -> Result:
        """How the search stands."""
        first, best = self._first, self._best
        gain = compare(best, first) if best is not first and self._is_measured(first) else None
        # Both means are then over the same samples.
        score = best.score if gain is None else estimate(best.on(each for each in best.rewards if self._both(each)))
        return Result(
            best_prompts={name: self._tools.prompt(name, best) for name in self._tools.prompts},
            score=score,
            gain=gain,
            rejections=dict(self._tools.rejections),
            counts={"candidates": len(self._candidates), "lost": self._tools.trials.lost, **self._tools.counts},
            history=tuple(self._candidates.values()),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the result, and the first prompt's reward where it was measured on the whole set."""
        figures = self.result.metrics
        if self._is_measured(self._first) and (score := self._first.score) is not None:
            figures.setdefault("val_reward_initial", score.mean)
        return figures

    async def begin(self) -> None:
        """Enter the first prompts, and measure them on the whole validation set if the options ask for it."""
        tools = self._tools
        texts = {name: prompt.template for name, prompt in tools.prompts.items()}
        self._first = self._best = self._admit(await tools.trials.enter(texts))
        self._beam = [self._first]
        if tools.options.run_initial_validation:
            batch = await tools.trials.validate(self._first, tools.val, range(len(tools.val)), step="begin")
            if not batch.rewards:
                logger.warning(
                    "lightning.apo_first_prompt_failed rollouts=%d: %s; edits may do better",
                    len(batch.outcomes),
                    describe_failure(batch.outcomes[0].rollout),
                )

    async def advance(self) -> None:
        """Run one round: edit the prompts of the beam, try the edits, keep the best.

        A round in which no rollout gives a reward says nothing of its prompts: the beam stays as it is.

        Raises:
            NoRewards: When no prompt has had a reward on a validation sample by then, though some were tried.
            AlgorithmError: When no model gave an answer in the whole round.
        """
        options, round_number = self._tools.options, self.round_number + 1
        branches = branches_of(self._beam, beam_width=options.beam_width, branch_factor=options.branch_factor)
        seed = seed_of("validation", options.seed)
        samples = deal(len(self._tools.val), options.val_batch_size, round_number - 1, seed=seed)
        growth = Growth(self._tools, round_number=round_number, known=self._candidates, samples=samples)
        before = self._rewards()
        grown = await growth.run(branches)
        require_answers([edit for _, edit in grown], round_number=round_number)
        children = [child for parent, edit in grown if (child := self._adopt(edit, parent, round_number)) is not None]
        pool = list(dict.fromkeys([*self._beam, *children]))
        self._require_rewards(growth, round_number)
        if failure := failure_of_all([*growth.train_batches, *growth.val_batches]):
            self._tools.counts["lost_rounds"] += 1
            logger.warning("lightning.apo_round_lost round=%d: no rollout gave a reward; %s", round_number, failure)
            self._forget_since(before)
        else:
            # Where these samples were lost by all, nothing was learnt of who is better.
            self._beam = best_first(pool, samples)[: options.beam_width] or self._beam
        self.round_number = round_number
        self._choose()
        logger.info(
            "lightning.apo_round_ended round=%d best=%d beam=%s rejected=%d: %s",
            round_number,
            self._best.number,
            [candidate.number for candidate in self._beam],
            self._tools.counts["rejected"],
            self.result,
        )

    async def conclude(self) -> None:
        """Measure the last beam on the whole validation set, and choose the best of it and of the first prompts.

        The first prompts take part if they were measured on the whole validation set. What is lost here is held against
        the beam: its prompts may well be the reason.

        Raises:
            NoRewards: When no prompt ever had a reward on a validation sample.
        """
        trials, val = self._tools.trials, self._tools.val
        batches = await concurrently(trials.validate(each, val, range(len(val)), step="end") for each in self._beam)
        if failure := failure_of_all(batches):
            logger.warning("lightning.apo_last_validation_lost; no rollout gave a reward; %s", failure)
        if not any(candidate.is_scored for candidate in self._candidates.values()):
            counts = self._tools.counts
            raise NoRewards(
                "the first prompt had no reward on any validation sample, and no other was found in "
                f"{self.round_number} rounds; rejected edits: {counts['rejected']}, lost: {counts['lost_branches']}"
            )
        self._choose()

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, as of the last step."""
        return {
            "round": self.round_number,
            "candidates": [
                {
                    "texts": dict(each.texts),
                    "resources_id": each.resources_id,
                    "round": each.round_number,
                    "parent": each.parent,
                    "rewards": [[sample, each.rewards[sample]] for sample in sorted(each.rewards)],
                }
                for each in self._candidates.values()
            ],
            "beam": [candidate.number for candidate in self._beam],
            "best": self._best.number,
            "counts": dict(self._tools.counts),
            "rejections": dict(self._tools.rejections),
            "lost": self._tools.trials.lost,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        tools = self._tools
        for each in state["candidates"]:
            candidate = Candidate(
                texts={name: each["texts"][name] for name in tools.prompts},
                resources=tools.trials.bundle(each["texts"]),
                resources_id=each["resources_id"],
                round_number=each["round"],
                parent=each["parent"],
                rewards=dict(each["rewards"]),
            )
            self._admit(candidate)
        numbered = list(self._candidates.values())
        self._first, self._best = numbered[0], numbered[state["best"]]
        self._beam = [numbered[number] for number in state["beam"]]
        self.round_number = state["round"]
        tools.counts.update(state["counts"])
        tools.rejections.update(state["rejections"])
        tools.trials.lost = state["lost"]

    def _require_rewards(self, growth: Growth, round_number: int) -> None:
        """Stop where prompts were tried, in this round at the latest, and none had any reward ever."""
        tried = [batch for batch in growth.val_batches if batch.outcomes]
        if not any(candidate.is_scored for candidate in self._candidates.values()):
            step = f"round {round_number}"
            require_rewards([*growth.train_batches, *tried], step=step)
            if tried:
                require_rewards(tried, step=step)

    def _rewards(self) -> dict[Candidate, dict[int, float | None]]:
        return {candidate: dict(candidate.rewards) for candidate in self._candidates.values()}

    def _forget_since(self, before: Mapping[Candidate, dict[int, float | None]]) -> None:
        """Take back what was lost by all, so that it is neither held against a prompt nor left untried later."""
        for candidate in self._candidates.values():
            candidate.rewards = before.get(candidate, {})

    def _adopt(self, edit: Edit, parent: Candidate, round_number: int) -> Candidate | None:
        """Count the result of a branch, and return its candidate, where there is one."""
        if isinstance(edit, ModelFailed):
            return None
        if isinstance(edit, Rejected):
            self._tools.counts["rejected"] += 1
            self._tools.rejections[edit] += 1
            return None
        if key_of(edit.texts) in self._candidates:
            self._tools.counts["duplicates"] += 1
            return edit
        edit.parent, edit.round_number = parent.number, round_number
        return self._admit(edit)

    def _admit(self, candidate: Candidate) -> Candidate:
        candidate.number = len(self._candidates)
        self._candidates[key_of(candidate.texts)] = candidate
        return candidate

    def _choose(self) -> None:
        """Choose the best so far, of the beam and, where they were measured, the first prompts."""
        contenders = [self._first, *self._beam] if self._is_measured(self._first) else self._beam
        common = set.intersection(*(set(each.rewards) for each in contenders))
        ranked = best_first(dict.fromkeys(contenders), sorted(common))
        self._best = ranked[0] if ranked else self._best

    def _is_measured(self, candidate: Candidate) -> bool:
        """Tell whether a candidate was tried on the whole validation set, and gave a reward."""
        return candidate.is_scored and len(candidate.rewards) == len(self._tools.val)

    def _both(self, sample: int) -> bool:
        return self._first.rewards.get(sample) is not None


def failure_of_all(batches: Sequence[Batch]) -> str | None:
    """Return why the first rollout gave no reward, where none of all did; None where one did, or there was none."""
    outcomes = [outcome for batch in batches for outcome in batch.outcomes]
    return outcomes[0].failure if outcomes and all(outcome.reward is None for outcome in outcomes) else None


def require_answers(edits: Sequence[Edit], *, round_number: int) -> None:
    """Stop a search whose models do not answer.

    Raises:
        AlgorithmError: When not one edit was made; says why the first was not.
    """
    failures = [edit for edit in edits if isinstance(edit, ModelFailed)]
    if failures and len(failures) == len(edits):
        raise AlgorithmError(
            f"round {round_number}: none of {len(edits)} edits was made; the first: {failures[0]}. "
            "Check the endpoint, its key, gradient_model and apply_edit_model"
        ) from failures[0]
