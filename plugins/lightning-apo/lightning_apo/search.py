"""The beam search."""

import logging
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lightning_apo.candidate import Candidate, Result, Texts, best_first, compare, proves_gain
from lightning_apo.growth import COUNTED, Edit, Growth, Key, Rejected, Tools, concurrently, key_of
from lightning_apo.inputs import seed_of, shuffled
from lightning_apo.models import ModelFailed
from lightning_apo.tools import HELD
from lightning_core.algorithm import Batch, describe_failure, require_rewards
from lightning_core.algorithm.estimates import estimate, paired_difference, without_interval
from lightning_core.errors import AlgorithmError, NoRewards

logger = logging.getLogger(__name__)

SEARCH_VERSION = 5
"""Another one where the same rewards lead to other prompts, or a state has another form: a run that was begun with it
begins anew."""

FINALISTS = 4
"""How many of the best prompts the rollouts are for that are left after the last round."""


class BeamSearch:
    """Searches for better prompts, step by step: `begin`, `advance` for each round, `conclude`.

    This is the beam search of Pryzant et al. 2023 (arXiv 2305.03495, section 2.2). There a bandit algorithm decides
    how often each candidate is tried. Here a prompt's edits are edited, too, before any is tried (`Growth`). Then the
    candidates of a round race: all are tried on a few validation samples, the better half of them on more, and so on,
    as in the sequential halving of Karnin, Koren and Somekh 2013 (ICML, algorithm 3). All are tried on the same samples
    in the same order, and what was learnt of a prompt in one round counts in later ones. At most a third of the
    validation samples is held: no race sees them, and at the end the gain is tested on them.

    Each round has an equal share of the rollouts that are left of `Plan.rollouts`; what it does not use is for the
    next. Nothing depends on the order in which rollouts and models come to an end. `state` after a step is all that a
    new search needs to go on from there, see `restore`.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._candidates: dict[Key, Candidate] = {}
        self._beam: list[Candidate] = []
        self._rounds = tools.options.rounds(len(tools.prompts))
        plan = tools.options.plan(n_train=len(tools.train), n_val=len(tools.val), n_prompts=len(tools.prompts))
        self._rollouts = plan.rollouts
        deck = shuffled(len(tools.val), seed=seed_of("validation", tools.options.seed))
        n_deck = len(deck) - plan.held_samples
        self._deck, self._held = deck[:n_deck], deck[n_deck:]
        self._untrained: str | None = None
        """Why the first training sample gave no reward, until one gives one."""
        self.round_number = 0
        """The round that has ended last, from 1; 0 before the first."""

    @property
    def best(self) -> Candidate:
        """The best candidate so far; the first prompts before anything was measured."""
        return self._best

    @property
    def result(self) -> Result:
        """How the search stands."""
        best, before, after = self._best, self._first.on(self._held), self._best.on(self._held)
        gain = None if best is self._first else paired_difference(before, after)
        # Both means are then over the same samples, which did not choose the best.
        both = [reward for reward, other in zip(after, before, strict=True) if other is not None]
        chosen = best.score if best is self._first else without_interval(best.score)
        return Result(
            best_prompts={name: self._tools.prompt(name, text) for name, text in best.texts.items()},
            score=chosen if gain is None else estimate(both),
            gain=gain,
            rejections=dict(self._tools.rejections),
            counts={"candidates": len(self._candidates), "lost": self._tools.trials.lost, **dict.fromkeys(COUNTED, 0)}
            | self._tools.counts,
            history=tuple(self._candidates.values()),
            is_proven=gain is not None and proves_gain(before, after),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the result, and the first prompt's reward where it was measured."""
        figures = self.result.metrics
        if (score := self._first.score) is not None:
            figures.setdefault("val_reward_initial", score.mean)
        return figures

    @property
    def goes_on(self) -> bool:
        """Whether there is another round, and rollouts for it: to train the beam, and to try each edit once."""
        options = self._tools.options
        training = len(self._beam) * min(options.gradient_batch_size, len(self._tools.train))
        return self.round_number < self._rounds and self._left >= training + self._edits + len(self._beam)

    async def begin(self) -> None:
        """Enter the first prompts, and measure them on the held samples if the options ask for it."""
        tools = self._tools
        texts = {name: prompt.template for name, prompt in tools.prompts.items()}
        self._first = self._best = self._admit(await tools.trials.enter(texts))
        self._beam = [self._first]
        if tools.options.run_initial_validation:
            batch = await tools.trials.validate(self._first, tools.val, self._held, step=HELD)
            if batch.outcomes and not batch.rewards:
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
        share = self._left // (self._rounds - self.round_number)
        already = self._tools.trials.asked
        # Places of the beam that are still empty go to the prompts that are there, the best ones first.
        branches = Counter(self._beam[place % len(self._beam)] for place in range(options.beam_width))
        growth = Growth(self._tools, round_number=round_number)
        before = self._rewards()
        grown = await growth.run(branches)
        require_answers([edit for _, edit in grown], round_number=round_number)
        if round_number == 1 or self._untrained is not None:
            self._untrained = (failure := failure_of_all(growth.batches)) and (self._untrained or failure)
        children = [await self._adopt(edit, parent, round_number) for parent, edit in grown]
        field = list(dict.fromkeys([*self._beam, *(child for child in children if child is not None)]))
        tried = await self._race(field, share - (self._tools.trials.asked - already), step=f"{round_number}")
        self._require_rewards(growth.batches, tried, round_number)
        if failure := failure_of_all([*growth.batches, *tried]):
            self._tools.counts["lost_rounds"] += 1
            logger.warning("lightning.apo_round_lost round=%d: no rollout gave a reward; %s", round_number, failure)
            self._forget_since(before)
        else:
            self._beam = self._ranked(self._candidates.values())[: options.beam_width] or self._beam
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
        """Spend what is left on the first prompts and the best ones, choose the best, and test its gain.

        The test is on the held samples, which chose nothing. Where the best is not better than the first prompts on
        all samples of both, these and the others, it ends with the first.

        Raises:
            NoRewards: When no prompt ever had a reward on a validation sample; or none on a training sample, though the
                first prompts had one elsewhere.
        """
        if self._untrained is not None and self._first.is_scored:
            raise NoRewards(
                f"no rollout on training samples gave a reward in {self.round_number} rounds, so no edit was made from "
                f"one; the first: {self._untrained}"
            )
        if self.round_number < self._rounds:
            logger.warning(
                "lightning.apo_ended_early rounds=%d of=%d; no rollouts were left for more: raise max_rollouts or "
                "val_batch_size",
                self.round_number,
                self._rounds,
            )
        batches: list[Batch] = []
        for step in range(len(self._deck)):
            leading = self._ranked(self._candidates.values())[:FINALISTS]
            finalists = list(dict.fromkeys([*leading, self._first]))
            samples = self._deck[: self._level(finalists, self._left)]
            tried = await self._measure(finalists, samples, step=f"end/{step}")
            if not tried:
                break
            batches += tried
        self._choose()
        if self._best is not self._first:
            batches += await self._measure([self._first, self._best], self._held, step=HELD)
            comparison = compare(self._best, self._first)
            if comparison is not None and comparison.difference <= 0:
                self._best = self._first
        if failure := failure_of_all(batches):
            logger.warning("lightning.apo_last_validation_lost; no rollout gave a reward; %s", failure)
        if not any(candidate.is_scored for candidate in self._candidates.values()):
            counts = self._tools.counts
            raise NoRewards(
                "the first prompt had no reward on any validation sample, and no other was found in "
                f"{self.round_number} rounds; rejected edits: {counts['rejected']}, lost: {counts['lost_branches']}"
            )

    @property
    def _edits(self) -> int:
        """How many edits a round makes."""
        return self._tools.options.beam_width * self._tools.options.branch_factor

    @property
    def _left(self) -> int:
        """How many rollouts there may still be, without those that the test of the gain takes."""
        to_test = len(self._held) + sum(sample not in self._first.rewards for sample in self._held)
        return self._rollouts - self._tools.trials.asked - to_test

    def _ranked(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        return best_first(candidates, self._candidates.values())

    async def _race(self, field: list[Candidate], share: int, *, step: str) -> list[Batch]:
        """Try candidates out on more and more samples, and leave half of them behind each time."""
        batches: list[Batch] = []
        already = self._tools.trials.asked
        level, rungs = 0, max(1, math.ceil(math.log2(len(field))))
        for rung in range(rungs):
            allowed = (share - (self._tools.trials.asked - already)) // (rungs - rung)
            level = max(level + 1, self._level(field, min(allowed, self._left)))
            if self._cost(field, level) > self._left:
                break
            batches += await self._measure(field, self._deck[:level], step=f"{step}/{rung}")
            field = self._ranked(field)[: math.ceil(len(field) / 2)] or field
        return batches

    async def _measure(self, candidates: Iterable[Candidate], samples: Sequence[int], *, step: str) -> list[Batch]:
        """Try candidates on samples that they were not tried on before; return what there was to do."""
        trials, val = self._tools.trials, self._tools.val
        batches = await concurrently(trials.validate(each, val, samples, step=step) for each in candidates)
        return [batch for batch in batches if batch.outcomes]

    def _level(self, candidates: Sequence[Candidate], allowed: int) -> int:
        """Return on how many samples these can be tried with so many rollouts."""
        levels = range(len(self._deck) + 1)
        return bisect_right(levels, allowed, key=lambda level: self._cost(candidates, level)) - 1

    def _cost(self, candidates: Iterable[Candidate], level: int) -> int:
        level = min(level, len(self._deck))
        return sum(sum(sample not in each.rewards for sample in self._deck[:level]) for each in candidates)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, as of the last step."""
        return {
            "round": self.round_number,
            "candidates": [
                asdict(each) | {"rewards": sorted(each.rewards.items())} for each in self._candidates.values()
            ],
            "untrained": self._untrained,
            "beam": [candidate.number for candidate in self._beam],
            "best": self._best.number,
            "counts": dict(self._tools.counts),
            "rejections": dict(self._tools.rejections),
            "lost": self._tools.trials.lost,
            "asked": self._tools.trials.asked,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        tools = self._tools
        for each in state["candidates"]:
            texts = {name: each["texts"][name] for name in tools.prompts}
            self._admit(Candidate(**{**each, "texts": texts, "rewards": dict(each["rewards"])}))
        numbered = list(self._candidates.values())
        self._first, self._best = numbered[0], numbered[state["best"]]
        self._beam = [numbered[number] for number in state["beam"]]
        self.round_number, self._untrained = state["round"], state["untrained"]
        tools.counts.update(state["counts"])
        tools.rejections.update(state["rejections"])
        tools.trials.lost, tools.trials.asked = state["lost"], state["asked"]

    def _require_rewards(self, trained: Sequence[Batch], tried: Sequence[Batch], round_number: int) -> None:
        """Stop where prompts were tried, in this round at the latest, and none had any reward ever."""
        if not any(candidate.is_scored for candidate in self._candidates.values()):
            step = f"round {round_number}"
            require_rewards([*trained, *tried], step=step)
            if tried:
                require_rewards(tried, step=step)

    def _rewards(self) -> dict[Candidate, dict[int, float | None]]:
        return {candidate: dict(candidate.rewards) for candidate in self._candidates.values()}

    def _forget_since(self, before: Mapping[Candidate, dict[int, float | None]]) -> None:
        """Take back what was lost by all, so that it is neither held against a prompt nor left untried later."""
        for candidate in self._candidates.values():
            candidate.rewards = before.get(candidate, {})

    async def _adopt(self, edit: Edit, parent: Texts, round_number: int) -> Candidate | None:
        """Count an edit, and return its candidate, if any. Equal edits are one, with the parent of the first."""
        if isinstance(edit, ModelFailed):
            return None
        if isinstance(edit, Rejected):
            self._tools.counts["rejected"] += 1
            self._tools.rejections[edit] += 1
            return None
        if (known := self._candidates.get(key_of(edit))) is not None:
            self._tools.counts["duplicates"] += 1
            return known
        edited = self._candidates[key_of(parent)]
        child = await self._tools.trials.enter(edit, edited)
        child.parent, child.round_number = edited.number, round_number
        return self._admit(child)

    def _admit(self, candidate: Candidate) -> Candidate:
        candidate.number = len(self._candidates)
        self._candidates[key_of(candidate.texts)] = candidate
        return candidate

    def _choose(self) -> None:
        ranked = self._ranked(self._candidates.values())
        self._best = ranked[0] if ranked else self._best


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
