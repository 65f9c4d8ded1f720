"""The algorithm `gepa`.

It is driven as any algorithm is: by a `Trainer`, with an agent that gives a reward. For a program that plays it without
models, the answers of the model that rewrites prompts can come from an object in place of the client, with
`chat.completions.create(model=..., messages=[{"role": "user", "content": request}], temperature=..., seed=...)`, a
coroutine function whose result is as a chat completion. The request has the current text between two lines of three
backticks, the first such pair in it; the answer is a new text, within three backticks or alone. The same seed, rewards
and answers give the same search:

    gepa = GEPA(client, max_metric_calls=200, seed=0)
    Trainer(algorithm=gepa, initial_resources={"main_prompt": prompt}).fit(agent, train, val_dataset=val)
    gepa.get_result().best_prompts["main_prompt"].template
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning_apo.candidate import Result
from lightning_apo.endpoint import Endpoint
from lightning_apo.prompt_search import PromptSearch, SearchPlan
from openai import AsyncOpenAI

from lightning_core.errors import AlgorithmError
from lightning_core.types import Dataset
from lightning_gepa.driver import optimize
from lightning_gepa.portal import Portal, run_in_thread
from lightning_gepa.search import LimitReached, Options, Search

logger = logging.getLogger(__name__)


class GEPA(PromptSearch[Options, SearchPlan]):
    """Improves prompts by reflective evolution, with the package `gepa`.

    In each iteration a prompt of the pool is tried on a few training samples, a model reads how it went and rewrites
    the prompt, and what does better on the same samples is tried on the whole validation set and joins the pool. The
    next prompt to be rewritten is drawn from those that are the best on some validation sample. The method is that of
    Agrawal et al. 2025, arXiv 2507.19457; the loop is gepa's own, and so are the options' names.

    The prompts are the `PromptTemplate`s of the initial resources, all of them at once. New texts keep their engine and
    have the same placeholders; others are rejected before they are tried. What else is in the resources stays as it is.
    Each candidate is a version of the resources, whose parent is the one that it was made from. At the end the best is
    also the store's latest resources.

    A rollout that fails counts for `failure_score`, to gepa; it is lost, not counted, in what is reported. A fault is
    run again by the store, and never scored: where it stays, the search ends with its cause, and can be resumed. With
    the same seed, the same rewards and the same answers of the model two runs search the same way. A run that was
    killed is continued by the next one with the same `run_id`, options, prompts and samples: it goes through the search
    again, and gets at once what had ended, from the store.

    Reported after the first validation and after each iteration:

    - `val_reward`: the best prompts' mean reward on validation samples. `val_samples` is how many are behind it.
    - `val_reward_initial`: the first prompts'. `val_gain` is the difference, sample by sample. On these samples the
      best of many looks better than it is, so there is no interval.
    - `val_reward_low` and `val_reward_high`: the 95% interval of `val_reward`, while the first prompts are the best.
    - `candidates`: those that were tried, the first included. `rejected`: texts that were broken, or had other
      placeholders. `duplicates`: texts that were as before. `lost_proposals`: answers that were empty or cut off.
    - `metric_calls`: rollouts. `lost`: those without a reward.
    - `reflection_calls`: requests to the model. `own_input_tokens`, `own_output_tokens`: what they used, as far as the
      endpoint tells.

    Where the trainer has a model proxy that serves the model, it is asked through it: these calls count in the run's
    budget, and are recorded in a rollout of their own. A client goes around it.

    Args:
        async_openai_client: Asks the model, and stays open. None for the model proxy, or else one of `OPENAI_BASE_URL`
            and `OPENAI_API_KEY`.
        reflection_lm: The model that rewrites prompts.
        max_metric_calls: The most rollouts. Unlike gepa's own it is never exceeded: what would exceed it is not begun.
        reflection_minibatch_size: How many training samples a proposal is made from, and tried on.
        module_selector: Which prompts a proposal rewrites: `round_robin` for one after the other, `all` for all.
        n_proposals: How many proposals an iteration makes, all at once.
        perfect_score: The highest reward that there is; None for no such. A prompt whose rewards on a minibatch are
            perfect is not rewritten, and the search ends when the best is perfect on the whole validation set.
        failure_score: What a rollout that fails, or gives no reward, counts for. At most the lowest reward that
            there is.
        seed: Makes gepa's choices repeatable, and goes along with each request to the model.
        prompt_names: Which prompts of the initial resources to improve; None for all of them.

    Raises:
        ValueError: When an option has a value that it cannot have.
    """

    reads_older_steps = True
    called = "gepa"

    def __init__(
        self,
        async_openai_client: AsyncOpenAI | None = None,
        *,
        reflection_lm: str = "gpt-5-mini",
        max_metric_calls: int = 500,
        reflection_minibatch_size: int = 3,
        module_selector: str = "round_robin",
        n_proposals: int = 1,
        perfect_score: float | None = 1.0,
        failure_score: float = 0.0,
        seed: int = 0,
        prompt_names: Sequence[str] | None = None,
    ) -> None:
        given = locals()
        models = {"reflection_lm": reflection_lm}
        super().__init__(
            Endpoint("gepa", models, async_openai_client),
            Options(**{name: given[name] for name in Options.model_fields}),
        )
        self._search: Search | None = None

    def get_result(self) -> Result:
        """Return how the last run stands: the best prompts, how good they are and how sure that is, all candidates.

        Raises:
            AlgorithmError: When nothing has been measured yet.
        """
        if self._search is None or self._search.best is None:
            raise AlgorithmError("there is no best prompt yet; run the algorithm first, as in Trainer(...).fit(agent)")
        return self._search.result

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Search for better prompts.

        Args:
            train_dataset: The samples that proposals are made from. Required. Those that are in the validation set,
                too, are left out.
            val_dataset: The samples that prompts are chosen by. Required; the model sees none of them.

        Raises:
            InvalidInput: When a dataset or the initial resources cannot be used, or there are too few rollouts.
            AlgorithmError: When faults have ended rollouts, the model is out of reach, there is no key for it, or the
                limit ends the first proposal that is to be tried on all validation samples.
            NoRewards: When the first prompts give no reward.
        """
        plan = self.plan(train_dataset, val_dataset)
        logger.info("lightning.gepa_plan rollouts=%d model_calls=%d: %s", plan.rollouts, plan.model_calls, plan)
        async with self._setting(Search, train_dataset, val_dataset, keeps_answers=True) as search:
            self._search = search
            await search.saved.try_again()  # counts the runs of the search, this one included
            try:
                await run_in_thread(partial(self._optimize, search), name="gepa")
            except LimitReached as exc:
                if (search.step <= 1 or exc.mode == "val") and not search.has_tried:
                    raise AlgorithmError(
                        f"max_metric_calls is {plan.rollouts}, and not one proposal could be tried to its end; raise "
                        "it, or give fewer validation samples"
                    ) from None
                logger.info("lightning.gepa_limit_reached metric_calls=%d", search.counts["metric_calls"])
            assert search.best is not None
            await search.trials.publish(search.best)
            self._tell(search, None)
            logger.info("lightning.gepa_ended best=%d: %s", search.best.number, search.result)
            await search.saved.end()

    def _optimize(self, search: Search, portal: Portal) -> None:
        optimize(search, portal, partial(self._tell, search))

    def _tell(self, search: Search, step: int | None) -> None:
        assert search.best is not None
        self.report(search.metrics, step=step, best_resources=search.trials.bundle(search.best.texts))
