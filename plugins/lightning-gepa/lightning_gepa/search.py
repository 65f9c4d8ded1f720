"""What gepa asks of the runners and of the model that rewrites prompts: the side of the search in the event loop."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gepa.core.adapter import EvaluationBatch
from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature
from lightning_apo.candidate import MEASURED, Candidate, Result, Texts, compare
from lightning_apo.experiment import Experiment
from lightning_apo.growth import Key, concurrently, key_of
from lightning_apo.inputs import digest, seed_of
from lightning_apo.messages import ShownPrompt
from lightning_apo.models import Answer, ModelFailed, NoAnswer, ask, why_broken
from lightning_apo.prompt_search import Count, Integer, Model, PromptNames, SearchOptions, SearchPlan
from lightning_apo.tools import Setting
from openai import AsyncOpenAI
from pydantic import Field

from lightning_core.algorithm import Batch, RolloutOutcome, require_rewards
from lightning_core.algorithm.estimates import estimate, without_interval
from lightning_core.errors import AlgorithmError, InvalidInput
from lightning_core.types import RolloutMode

logger = logging.getLogger(__name__)

ModuleSelector = Literal["round_robin", "all"]


class Options(SearchOptions):
    """The options of `GEPA`, which says what they mean."""

    reflection_lm: Model
    max_metric_calls: Count
    reflection_minibatch_size: Count
    module_selector: ModuleSelector = Field(description=f"one of {', '.join(get_args(ModuleSelector))}")
    n_proposals: Count
    perfect_score: float | None = Field(description="the highest reward that there is, or none if there is no such")
    failure_score: float = Field(description="a number")
    seed: Integer
    prompt_names: PromptNames

    def plan(self, *, n_train: int, n_val: int, n_prompts: int) -> SearchPlan:
        """See `SearchOptions.plan`.

        Raises:
            InvalidInput: When that is not even one proposal.
        """
        least = 2 * n_val + 2 * self.reflection_minibatch_size
        if self.max_metric_calls < least:
            raise InvalidInput(
                f"max_metric_calls is {self.max_metric_calls}, and the first proposal takes {least}: {n_val} "
                f"for the first prompt on the val_dataset, twice {self.reflection_minibatch_size} for the proposal on "
                f"training samples, and {n_val} on the val_dataset; raise it, or give fewer validation samples"
            )
        proposals = (self.max_metric_calls - n_val) // self.reflection_minibatch_size
        edited = n_prompts if self.module_selector == "all" else 1
        return SearchPlan(self.max_metric_calls, proposals * edited, self.reflection_lm)


Sample = tuple[RolloutMode, int]
"""Which dataset, and the index in it."""

Records = Mapping[str, Sequence[Mapping[str, Any]]]
"""What is known of the runs with a candidate, for each prompt that is to be rewritten, by its name."""


class LimitReached(Exception):
    """The next step, on samples of this mode, would take more rollouts than `max_metric_calls`."""

    def __init__(self, mode: RolloutMode) -> None:
        super().__init__(mode)
        self.mode = mode


@dataclass(kw_only=True, slots=True)
class Search(Setting):
    """Runs candidates, asks for new texts, and knows how the search stands."""

    options: Options
    client: AsyncOpenAI
    candidates: dict[Key, Candidate] = field(default_factory=dict)
    """In the order in which they were found; the first one is that of the first prompts."""
    parents: dict[Key, Key] = field(default_factory=dict)
    """What each proposal was made from."""
    best: Candidate | None = None
    step: int = 0
    """gepa's iteration, from 1; 0 before the first."""
    _evaluations: int = 0

    @property
    def has_tried(self) -> bool:
        """Whether a proposal was tried on all validation samples."""
        return any(each.number and each.rewards for each in self.candidates.values())

    @property
    def result(self) -> Result:
        """How the search stands."""
        first, best = next(iter(self.candidates.values())), self.best
        assert best is not None
        gain = compare(best, first) if best is not first else None
        both = [sample for sample, reward in first.rewards.items() if gain is None or reward is not None]
        score = estimate(best.on(both))
        if gain is not None:  # the best was chosen on these samples
            score, gain = without_interval(score), without_interval(gain)
        return Result(
            best_prompts={name: self.prompt(name, text) for name, text in best.texts.items()},
            score=score,
            gain=gain,
            rejections=dict(self.rejections),
            counts={"candidates": len(self.candidates), **dict.fromkeys(COUNTED, 0), **self.counts},
            history=tuple(self.candidates.values()),
        )

    @property
    def metrics(self) -> dict[str, float | None]:
        """What `GEPA` reports; None of what cannot be said of this best candidate."""
        first = next(iter(self.candidates.values()))
        initial = None if first.score is None else first.score.mean
        return {**dict.fromkeys(MEASURED), "val_reward_initial": initial, **self.result.metrics}

    async def evaluate(self, items: Sequence[tuple[Texts, Sequence[Sample]]]) -> list[EvaluationBatch]:
        """Run candidates on samples, all at once. A candidate has one run on each validation sample.

        Raises:
            LimitReached: When these would be too many rollouts.
            AlgorithmError: When faults have ended rollouts.
            NoRewards: When the first prompts get no reward on any validation sample.
        """
        self._evaluations += 1
        wanted = [self._not_run(texts, samples) for texts, samples in items]
        if self.counts["metric_calls"] + sum(map(len, wanted)) > self.options.max_metric_calls:
            raise LimitReached(items[0][1][0][0])
        self.counts["metric_calls"] += sum(map(len, wanted))
        candidates = [await self._enter(texts) for texts, _ in items]
        batches = await concurrently(
            self._run(candidate, samples[0][0], indexes, step=f"{self._evaluations}/{place}")
            for place, (candidate, (_, samples), indexes) in enumerate(zip(candidates, items, wanted, strict=True))
        )
        return [
            self._scored(candidate, samples, outcomes)
            for candidate, (_, samples), outcomes in zip(candidates, items, batches, strict=True)
        ]

    async def rewrite(self, jobs: Sequence[tuple[Texts, Records, Sequence[str]]]) -> list[dict[str, str]]:
        """Have prompts of candidates rewritten, all at once. What cannot be used is left out, and counted."""
        requests = [(place, name) for place, (_, _, names) in enumerate(jobs) for name in names]
        begun = self.counts["reflection_calls"]
        self.counts["reflection_calls"] += len(requests)
        answers = await concurrently(
            self._ask(jobs[place][0][name], jobs[place][1][name], name, begun + each)
            for each, (place, name) in enumerate(requests)
        )
        rewritten: list[dict[str, str]] = [{} for _ in jobs]
        for (place, name), answer in zip(requests, answers, strict=True):
            text = self._usable(self.spent_on(answer), name, jobs[place][0][name])
            if text is not None:
                rewritten[place][name] = text
        for (parent, _, _), texts in zip(jobs, rewritten, strict=True):
            key, origin = key_of({**parent, **texts}), key_of(parent)
            if key != origin:
                self.parents.setdefault(key, origin)
        return rewritten

    def _not_run(self, texts: Texts, samples: Sequence[Sample]) -> list[int]:
        known = self.candidates.get(key_of(texts))
        return [index for mode, index in samples if mode == "train" or known is None or index not in known.rewards]

    async def _enter(self, texts: Texts) -> Candidate:
        """Return the candidate with these texts; a new one becomes a version of the resources."""
        key = key_of(texts)
        if key not in self.candidates:
            parent = self.candidates[self.parents[key]] if key in self.parents else None
            candidate = await self.trials.enter(texts, parent)
            candidate.number, candidate.round_number = len(self.candidates), self.step
            candidate.parent = None if parent is None else parent.number
            self.candidates[key] = candidate
        return self.candidates[key]

    async def _run(
        self, candidate: Candidate, mode: RolloutMode, indexes: Sequence[int], *, step: str
    ) -> list[RolloutOutcome]:
        if not indexes:
            return []
        dataset = self.train if mode == "train" else self.val
        batch = await self.trials.run(candidate, dataset, indexes, mode=mode, step=step)
        outcomes = list(batch.outcomes)
        is_first = mode == "val" and candidate.number == 0
        for again in range(1, self.saved.tries):  # what may have ended an earlier run of the search
            nothing_known = is_first and not Batch(outcomes).rewards
            places = [place for place, each in enumerate(outcomes) if nothing_known or is_fault(each)]
            if not places:
                break
            batch = await self.trials.run(
                candidate, dataset, [indexes[each] for each in places], mode=mode, step=f"{step}/again {again}"
            )
            for place, outcome in zip(places, batch.outcomes, strict=True):
                outcomes[place] = outcome
        if faults := [outcome for outcome in outcomes if is_fault(outcome)]:
            raise AlgorithmError(
                f"faults ended {len(faults)} of {len(outcomes)} rollouts, though they were run again; the first: "
                f"{faults[0].failure}. They are no rewards of 0: mend the cause, and the run can be resumed"
            )
        if is_first:
            require_rewards([Batch(outcomes)], step="the first prompt on the val_dataset")
        return outcomes

    def _scored(
        self, candidate: Candidate, samples: Sequence[Sample], outcomes: Sequence[RolloutOutcome]
    ) -> EvaluationBatch:
        """Return what gepa is told of the runs on one batch, and keep the rewards on validation samples."""
        self.counts["lost"] += sum(outcome.reward is None for outcome in outcomes)
        is_train = samples[0][0] == "train"
        if is_train:
            rewards = [outcome.reward for outcome in outcomes]
        else:
            missing = [index for _, index in samples if index not in candidate.rewards]
            candidate.rewards.update(zip(missing, [outcome.reward for outcome in outcomes], strict=True))
            rewards = candidate.on(index for _, index in samples)
        self._check_range([reward for reward in rewards if reward is not None])
        return EvaluationBatch(
            outputs=[None] * len(samples),
            scores=[self.options.failure_score if reward is None else reward for reward in rewards],
            trajectories=[record_of(Experiment.from_outcome(each, self.adapter)) for each in outcomes]
            if is_train
            else None,
        )

    def _check_range(self, rewards: Sequence[float]) -> None:
        perfect, failed = self.options.perfect_score, self.options.failure_score
        if perfect is not None and (highest := max(rewards, default=perfect)) > perfect:
            raise AlgorithmError(
                f"a reward is {highest:g}, and perfect_score is {perfect:g}: gepa improves no prompt where all rewards "
                "are perfect. Set perfect_score to the highest reward that there is, or to none"
            )
        if (lowest := min(rewards, default=failed)) < failed:
            raise AlgorithmError(
                f"a reward is {lowest:g}, and failure_score is {failed:g}: a prompt with which the agent fails "
                "would be better. Set failure_score to the lowest reward that there is, or to a lower number"
            )

    async def _ask(self, text: str, records: Sequence[Mapping[str, Any]], name: str, number: int) -> Answer:
        """Ask for a new text, or return what was answered before the run was resumed; an empty one where there is none.

        Raises:
            NoAnswer: When the model is out of reach; the search then stops, and can be resumed.
        """
        request = request_for(text, records, self.shown(name, text))

        async def answer() -> Answer:
            try:
                return await ask(
                    self.client,
                    request,
                    model=self.options.reflection_lm,
                    temperature=1.0,
                    seed=seed_of("reflection", self.options.seed, number),
                )
            except NoAnswer:
                raise
            except ModelFailed as exc:
                logger.warning("lightning.gepa_proposal_lost step=%d prompt=%s: %s", self.step, name, exc)
                return Answer("")

        return await self.saved.once(f"{number}/{digest(request)}", answer)

    def _usable(self, answer: str, name: str, parent: str) -> str | None:
        """Return the text of a new template, and count those that cannot be used."""
        if not answer:
            self.counts["lost_proposals"] += 1
            return None
        text: str = Signature.output_extractor(answer.strip())["new_instruction"]
        if text.strip() == parent.strip():  # gepa has stripped the answer
            self.counts["duplicates"] += 1
            return None
        if reason := why_broken(text, self.prompt(name, parent)):
            logger.info("lightning.gepa_proposal_rejected step=%d prompt=%s: %s", self.step, name, reason)
            self.counts["rejected"] += 1
            self.rejections[reason] += 1
            return None
        return text


COUNTED = (
    "metric_calls",
    "reflection_calls",
    "rejected",
    "duplicates",
    "lost",
    "lost_proposals",
    "own_input_tokens",
    "own_output_tokens",
)


def is_fault(outcome: RolloutOutcome) -> bool:
    """Whether a rollout has no reward for a reason that is not the agent's."""
    metadata = {} if outcome.attempt is None else outcome.attempt.metadata or {}
    return outcome.reward is None and (outcome.rollout.status == "cancelled" or "given_up" in metadata)


def request_for(text: str, records: Sequence[Mapping[str, Any]], shown: ShownPrompt) -> str:
    """Return gepa's request for a new text, and what it does not know: that the text is a template."""
    rule = "The instructions are a template, but nothing is filled in: use no placeholders."
    if shown.placeholders:
        rule = (
            f"The instructions are a template. In place of {', '.join(shown.placeholders)} each task has its own text: "
            "keep every such placeholder, written just so, and use no others."
        )
    template = f"{Signature.default_prompt_template}\n\n{rule}"
    mark = "<curr_param>"  # filled in last: gepa would fill in what looks like a mark in the text, too
    request: str = Signature.prompt_renderer(
        {"current_instruction_doc": mark, "dataset_with_feedback": records, "prompt_template": template}
    )
    return request.replace(mark, text, 1)


def record_of(run: Experiment) -> dict[str, Any]:
    """Return a run as the model reads it that rewrites a prompt: a heading for each name, the parts that there are."""
    record: dict[str, Any] = {"Task": run.task}
    parts: dict[str, Sequence[str]] = {
        "Conversation, with calls of tools and their results": run.turns,
        "Operations": run.operations,
        "Messages of the agent": run.messages,
    }
    record |= {name: list(texts) for name, texts in parts.items() if texts}
    if run.reward is None:
        return {**record, "Failure": run.failure}
    return {
        **record,
        "Reward": ", ".join(f"{name} {value:g}" for name, value in run.rewards.items()) or f"{run.reward:g}",
    }
