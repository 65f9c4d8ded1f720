"""gepa's own loop, in a thread, with our runners behind its adapter and our models behind its proposals."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gepa
from gepa.core.adapter import EvaluationBatch
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.proposal_sampling import IndependentSampling
from lightning_apo.candidate import Texts
from lightning_apo.growth import key_of

from lightning_gepa.portal import Portal
from lightning_gepa.search import Records, Sample, Search

logger = logging.getLogger(__name__)


def optimize(search: Search, portal: Portal, tell: Callable[[int | None], None]) -> None:
    """Run `gepa.optimize` on a search, until no rollouts are left or nothing is left to gain.

    To be called in the thread of the portal. gepa keeps nothing: it is given no folder, so it writes and reads no
    pickle.

    Args:
        search: What is searched; has the result.
        portal: Runs what the search does.
        tell: Called after the first validation, and with the number of each iteration that has ended.
    """
    options, driver = search.options, Driver(search, portal, tell)
    gepa.optimize(
        seed_candidate={name: prompt.template for name, prompt in search.prompts.items()},
        trainset=[("train", index) for index in range(len(search.train))],
        valset=[("val", index) for index in range(len(search.val))],
        adapter=driver,
        reflection_strategy=driver,
        callbacks=[driver],
        stop_callbacks=[lambda state: is_over(search)],
        candidate_selection_strategy="pareto",
        reflection_minibatch_size=options.reflection_minibatch_size,
        module_selector=options.module_selector,
        sampling_strategy=IndependentSampling(options.n_proposals),
        skip_perfect_score=options.perfect_score is not None,
        perfect_score=options.perfect_score,
        seed=options.seed,
        track_best_outputs=False,
        logger=Log(),
    )


def is_over(search: Search) -> bool:
    """Whether no rollout is left, or the best candidate is perfect on each validation sample."""
    perfect, best = search.options.perfect_score, search.best
    is_perfect = (
        perfect is not None
        and best is not None
        and all(reward is not None and reward >= perfect for reward in best.rewards.values())
    )
    return is_perfect or search.counts["metric_calls"] >= search.options.max_metric_calls


@dataclass(eq=False)
class Driver:
    """What gepa calls.

    It is gepa's `GEPAAdapter`, which runs candidates on all runners at once; its `ReflectionLM`, which has prompts
    rewritten; and follows its loop, whose events are mappings, as `gepa.core.callbacks` describes them.
    """

    propose_new_texts: ClassVar[None] = None
    """Has to be there: without it gepa proposes nothing, and says so in its log alone."""

    search: Search
    portal: Portal
    tell: Callable[[int | None], None]

    def evaluate(self, batch: list[Sample], candidate: Texts, capture_traces: bool = False) -> EvaluationBatch:
        """Run one candidate."""
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: list[tuple[Texts, list[Sample]]]) -> list[EvaluationBatch]:
        """Run several candidates."""
        return self.portal.call(lambda: self.search.evaluate(items))

    def make_reflective_dataset(
        self, candidate: Texts, eval_batch: EvaluationBatch, components_to_update: list[str]
    ) -> Records:
        """Return what the model that rewrites prompts is shown, of the same runs for each prompt."""
        return dict.fromkeys(components_to_update, eval_batch.trajectories)

    def reflect_many(
        self, jobs: Sequence[tuple[Texts, Records, list[str]]]
    ) -> list[tuple[ReflectionProposal, "Driver"]]:
        """Return the new texts of each job; none where a text could not be used."""
        rewritten = self.portal.call(lambda: self.search.rewrite(jobs))
        return [(ReflectionProposal(new_texts=texts), self) for texts in rewritten]

    def on_iteration_start(self, event: Any) -> None:
        """Record which iteration it is."""
        self.search.step = event["iteration"]

    def on_valset_evaluated(self, event: Any) -> None:
        """Record the best, which gepa chooses."""
        if event["is_best_program"]:
            self.search.best = self.search.candidates[key_of(event["candidate"])]
        if not self.search.step:
            self._report(None)

    def on_iteration_end(self, event: Any) -> None:
        """Report an iteration that has come to its end; gepa also calls this for one that has not."""
        if not self.portal.has_stopped:
            self._report(event["iteration"])

    def _report(self, step: int | None) -> None:
        async def tell() -> None:  # gepa only logs what a callback raises
            self.tell(step)

        self.portal.call(tell)


class Log:
    """Where gepa logs to."""

    def log(self, message: str) -> None:
        """Log a line."""
        logger.debug("lightning.gepa_says %s", message)
