"""Automatic prompt optimisation."""

import logging
from collections.abc import Sequence
from typing import Any

from openai import AsyncOpenAI

from lightning_apo.candidate import MEASURED, Result
from lightning_apo.endpoint import Endpoint
from lightning_apo.growth import Tools
from lightning_apo.inputs import digest
from lightning_apo.messages import critic_request, editor_request, find_mark
from lightning_apo.models import PromptModel
from lightning_apo.plan import Options, Plan
from lightning_apo.prompt_search import PromptSearch
from lightning_apo.search import SEARCH_VERSION, BeamSearch
from lightning_core.deprecated import deprecated
from lightning_core.errors import AlgorithmError, InvalidInput, NoBestYet, NoRewards
from lightning_core.types import Dataset, NamedResources, PromptTemplate

logger = logging.getLogger(__name__)


class APO(PromptSearch[Options, Plan]):
    """Improves prompts with textual gradients and beam search.

    In each round every prompt of the beam is tried on training samples, a model says what is wrong with it, and
    another one edits it accordingly, and edits its edits. All edits and the beam race on validation samples, and the
    best of all prompts are the next beam. The method is that of Pryzant et al. 2023, arXiv 2305.03495; `BeamSearch`
    and `PromptModel` say where this differs.

    The prompts are the `PromptTemplate`s of the initial resources. Edits keep their engine and have the same
    placeholders; other edits are rejected before they are tried. What else is in the resources stays as it is.
    Several prompts are edited in turn, one in each round, and each in `beam_rounds` rounds.

    At the end the best is also the store's latest resources.

    A rollout that gives no reward is a lost sample: it counts neither for nor against a prompt. With the same seed,
    the same rewards and the same answers of the models, two runs search the same way, whatever is slow. After each
    step, and after each answer of a model, the store has all that another run needs to go on: a run that was killed
    is continued by the next one with the same `run_id`, options, prompts and samples, and ends as if it had not
    been.

    Reported before the first round, after each round and at the end, counted from the start of the run; what cannot be
    said of the best prompt of that moment has no value:

    - `val_reward`: the best prompt's mean reward on validation samples; `val_samples` is how many are behind it.
      `val_reward_low` and `val_reward_high` are its 95% interval, where these samples did not choose it.
    - `val_reward_initial`: the first prompt's mean reward, where it was measured. `val_gain` is the difference, sample
      by sample; `val_gain_low` and `val_gain_high` are its 95% interval. All four are those of the held samples at the
      end, where the best is another prompt than the first.
    - `candidates`: different prompts that were tried, the first included.
    - `rejected`: edits that were broken, or had other placeholders. `duplicates`: edits that were known already.
    - `lost`: rollouts without a reward. `lost_rounds`: rounds in which no rollout gave one. `lost_branches`: edits that
      a model gave no answer for.
    - `critic_calls`, `editor_calls`: requests to the two models. `own_input_tokens`, `own_output_tokens`: what these
      used, as far as the endpoint tells; of requests without an answer it is not known.

    Where the trainer has a model proxy that serves both models, they are asked through it: these calls count in the
    run's budget, and are recorded in a rollout of their own. A client goes around it.

    Args:
        async_openai_client: Asks the models, and stays open. None for the model proxy, or else one of `OPENAI_BASE_URL`
            and `OPENAI_API_KEY`.
        gradient_model: The model that criticises.
        apply_edit_model: The model that edits.
        diversity_temperature: The temperature of both.
        gradient_batch_size: How many training samples a critique is made from.
        val_batch_size: How many rollouts on validation samples a round has for each edit. Those that drop out early
            leave theirs to the others.
        beam_width: How many prompts are kept from round to round.
        branch_factor: How many edits are made in a round for each place of the beam, all by one critique.
        beam_rounds: How many rounds there are, for each prompt where several are edited in turn.
        rollout_batch_timeout: The longest wait, in seconds, for rollouts that are enqueued together, their wait for a
            free runner included. What has not ended by then is cancelled, and lost.
        run_initial_validation: Whether to measure the first prompts on the held samples before the first round, rather
            than at the end. The search is the same.
        seed: Makes the choice of samples repeatable, and goes along with each request to a model.
        prompt_names: Which prompts of the initial resources to improve; None for all of them.
        max_rollouts: The most rollouts of one try of the search; the held-out test of the trainer is not counted.
            Rounds share them. None for as many as the other options take.
        critic_template: The request for a critique, as the text of a jinja template; None for our own.
        editor_template: The request for an edit, likewise.

    Raises:
        ValueError: When an option has a value that it cannot have.
    """

    reads_older_steps = True
    called = "apo"

    @deprecated(without_effect={"_poml_trace": "requests are not written in POML; spans and the log have them"})
    def __init__(
        self,
        async_openai_client: AsyncOpenAI | None = None,
        *,
        gradient_model: str = "gpt-5-mini",
        apply_edit_model: str = "gpt-4.1-mini",
        diversity_temperature: float = 1.0,
        gradient_batch_size: int = 4,
        val_batch_size: int = 16,
        beam_width: int = 4,
        branch_factor: int = 4,
        beam_rounds: int = 3,
        rollout_batch_timeout: float = 3600.0,
        run_initial_validation: bool = True,
        seed: int = 0,
        prompt_names: Sequence[str] | None = None,
        max_rollouts: int | None = None,
        critic_template: str | None = None,
        editor_template: str | None = None,
    ) -> None:
        given = locals()
        models = {"gradient_model": gradient_model, "apply_edit_model": apply_edit_model}
        super().__init__(
            Endpoint("apo", models, async_openai_client),
            Options(**{name: given[name] for name in Options.model_fields}),
        )
        self._critic_request = critic_request(critic_template)
        self._editor_request = editor_request(editor_template)
        self._result: Result | None = None

    def get_best_prompt(self, name: str | None = None) -> PromptTemplate:
        """Return the best prompt so far; after a run, the best of the run.

        Args:
            name: Which one, where several are improved.

        Raises:
            AlgorithmError: When no run has begun, or there is no prompt of this name, or no name but several prompts.
        """
        prompts = self.get_result().best_prompts
        if name is None and len(prompts) == 1:
            [name] = prompts
        if name is None or name not in prompts:
            asked = "no name was given" if name is None else f"there is no prompt {name!r}"
            raise AlgorithmError(f"{asked}; the prompts that are improved are {', '.join(map(repr, prompts))}")
        return prompts[name]

    def get_result(self) -> Result:
        """Return how the last run stands: the best prompts, how good they are and how sure that is, all candidates.

        Raises:
            AlgorithmError: When no run has begun.
        """
        if self._result is None:
            raise NoBestYet("there is no best prompt yet; run the algorithm first, as in Trainer(...).fit(agent)")
        return self._result

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Search for better prompts.

        Args:
            train_dataset: The samples that critiques are made from. Required. Those that are in the validation set,
                too, are left out.
            val_dataset: The samples that prompts are chosen by. Required; no critique sees them.

        Raises:
            InvalidInput: When a dataset or the initial resources cannot be used, or there are too few rollouts.
            AlgorithmError: When there is no key for the models, or none of them answers in a whole round.
            NoRewards: When no prompt gives a reward.
        """
        plan = self.plan(train_dataset, val_dataset)
        logger.info("lightning.apo_plan rollouts=%d model_calls=%d: %s", plan.rollouts, plan.model_calls, plan)
        depends_on = {
            "search": SEARCH_VERSION,
            "critic_template": digest(self._critic_request.source),
            "editor_template": digest(self._editor_request.source),
        }
        timeout_seconds = self._options.rollout_batch_timeout
        async with self._setting(
            self._tools, train_dataset, val_dataset, depends_on=depends_on, timeout_seconds=timeout_seconds
        ) as tools:
            if train_dataset is not None and (left_out := len(train_dataset) - len(tools.train)):
                logger.warning(
                    "lightning.apo_samples_left_out count=%d; these training samples are in the val_dataset, too",
                    left_out,
                )
            try:
                await self._search(BeamSearch(tools), tools)
            except NoRewards:
                # Its rollouts have ended; the next run asks for new ones.
                await tools.saved.try_again()
                raise
            await tools.saved.end()

    def _tools(self, *, client: AsyncOpenAI, **setting: Any) -> Tools:
        options = self._options
        critic = PromptModel(client, options.gradient_model, options.diversity_temperature, self._critic_request)
        editor = PromptModel(client, options.apply_edit_model, options.diversity_temperature, self._editor_request)
        return Tools(critic=critic, editor=editor, **setting)

    def _tuned_prompts(self, resources: NamedResources) -> dict[str, PromptTemplate]:
        tuned = super()._tuned_prompts(resources)
        for name, prompt in tuned.items():
            if mark := find_mark(prompt.template):
                raise InvalidInput(
                    f"prompt {name!r} contains {mark!r}, which marks the prompt in requests to a model; write it "
                    "otherwise"
                )
        return tuned

    async def _search(self, search: BeamSearch, tools: Tools) -> None:
        saved = tools.saved
        if saved.state is None:
            await search.begin()
            await saved.keep(search.state())
        else:
            search.restore(saved.state)
        self._tell(search, tools)
        while search.goes_on:
            await search.advance()
            await saved.keep(search.state())
            self._tell(search, tools, step=search.round_number)
        await search.conclude()
        await tools.trials.publish(search.best)
        self._tell(search, tools)
        logger.info("lightning.apo_ended best=%d: %s", search.best.number, search.result)

    def _tell(self, search: BeamSearch, tools: Tools, *, step: int | None = None) -> None:
        self._result = search.result
        # What cannot be said of this best prompt must not stay from an earlier one.
        metrics = {**dict.fromkeys(MEASURED), **search.metrics}
        self.report(metrics, step=step, best_resources=tools.trials.bundle(search.best.texts))
