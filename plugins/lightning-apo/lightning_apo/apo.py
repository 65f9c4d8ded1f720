"""Automatic prompt optimisation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from lightning_apo.critic import Critic
from lightning_apo.editor import Editor
from lightning_apo.markers import find_mark
from lightning_apo.options import Options
from lightning_apo.search import BeamSearch
from lightning_apo.trials import Trials
from lightning_core.algorithm import Algorithm
from lightning_core.errors import AlgorithmError
from lightning_core.types import Dataset, NamedResources, PromptTemplate


class APO(Algorithm):
    """Improves a prompt with textual gradients and beam search.

    In each round every prompt of the beam is tried on training samples, a model says what is wrong with it, and
    another one edits it accordingly. The edits and the beam are tried on the same validation samples, and the best
    of them are the next beam. The method is that of Pryzant et al. 2023, arXiv 2305.03495; `BeamSearch`, `Critic`
    and `Editor` say where this differs.

    The prompt is the one `PromptTemplate` of the initial resources. Edits keep its engine and have the same
    placeholders; other edits are rejected before they are tried. What else is in the resources stays as it is.

    At the end the best is also the store's latest resources.

    A rollout that gives no reward is a lost sample: it counts neither for nor against a prompt. With the same seed,
    the same rewards and the same answers of the models, two runs search the same way.

    Reported after each round, and at the end, counted from the start of the run:

    - `val_reward`: the best prompt's mean reward on the validation samples that it was tried on. At the end the best
      is chosen on the whole validation set.
    - `val_reward_initial`: the first prompt's, once it was tried on the whole validation set.
    - `val_samples`: how many samples are behind `val_reward`.
    - `candidates`: different prompts that were tried, the first included.
    - `rejected`: edits that were broken, or had other placeholders. `duplicates`: edits that were known already.
    - `lost`: rollouts without a reward. `lost_branches`: edits that a model gave no answer for.

    Args:
        async_openai_client: Asks the models, and stays open. None to make one when the run starts, from
            `OPENAI_API_KEY` and `OPENAI_BASE_URL`.
        gradient_model: The model that criticises.
        apply_edit_model: The model that edits.
        diversity_temperature: The temperature of both.
        gradient_batch_size: How many training samples a critique is made from.
        val_batch_size: How many validation samples the candidates of a round are tried on.
        beam_width: How many prompts are kept from round to round.
        branch_factor: How many edits are made in a round for each place of the beam.
        beam_rounds: How many rounds there are.
        rollout_batch_timeout: The longest wait, in seconds, for the rollouts of one prompt in one step, their wait
            for a free runner included. What has not ended by then is cancelled, and lost.
        run_initial_validation: Whether to try the first prompt on the whole validation set before the first round.
        seed: Makes the choice of samples repeatable, and goes along with each request to a model.

    Raises:
        ValueError: When an option has a value that it cannot have.
    """

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
    ) -> None:
        self._client = async_openai_client
        self._options = Options(
            gradient_model=gradient_model,
            apply_edit_model=apply_edit_model,
            diversity_temperature=diversity_temperature,
            gradient_batch_size=gradient_batch_size,
            val_batch_size=val_batch_size,
            beam_width=beam_width,
            branch_factor=branch_factor,
            beam_rounds=beam_rounds,
            rollout_batch_timeout=rollout_batch_timeout,
            run_initial_validation=run_initial_validation,
            seed=seed,
        )
        self._best_prompt: PromptTemplate | None = None

    def get_best_prompt(self) -> PromptTemplate:
        """Return the best prompt so far; after a run, the best of the run.

        Raises:
            AlgorithmError: When no run has begun.
        """
        if self._best_prompt is None:
            raise AlgorithmError("there is no best prompt yet; run the algorithm first, as in Trainer(...).fit(agent)")
        return self._best_prompt

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Search for a better prompt.

        Args:
            train_dataset: The samples that critiques are made from. Required.
            val_dataset: The samples that prompts are chosen by. Required; no critique sees them.

        Raises:
            AlgorithmError: When something that the run needs is missing, or no model answers.
            NoRewards: When not one rollout of a whole step gave a reward.
        """
        resources = self.get_initial_resources() or {}
        prompt_name, prompt = _only_prompt(resources)
        trials = Trials(
            self.get_store(),
            resources,
            prompt_name=prompt_name,
            timeout_seconds=self._options.rollout_batch_timeout,
            config=self.get_rollout_config(),
        )
        temperature = self._options.diversity_temperature
        async with self._open_client() as client:
            search = BeamSearch(
                self._options,
                trials=trials,
                critic=Critic(client, model=self._options.gradient_model, temperature=temperature),
                editor=Editor(client, model=self._options.apply_edit_model, temperature=temperature),
                train_dataset=_filled("train_dataset", train_dataset),
                val_dataset=_filled("val_dataset", val_dataset),
            )
            await search.begin(prompt)
            self._tell(search)
            for round_number in range(1, self._options.beam_rounds + 1):
                await search.advance(round_number)
                self._tell(search, step=round_number)
            await search.conclude()
            await trials.publish(search.best)
            self._tell(search)

    def _tell(self, search: BeamSearch, *, step: int | None = None) -> None:
        self._best_prompt = search.best.prompt
        self.report(search.metrics, step=step, best_resources=search.best.resources)

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[AsyncOpenAI]:
        if self._client is not None:
            yield self._client
            return
        try:
            client = AsyncOpenAI()
        except OpenAIError as exc:
            raise AlgorithmError(
                "apo asks models to improve the prompt, and has no key for them; set OPENAI_API_KEY (and "
                "OPENAI_BASE_URL for a provider other than OpenAI), or pass an AsyncOpenAI client to APO"
            ) from exc
        async with client:
            yield client


def _only_prompt(resources: NamedResources) -> tuple[str, PromptTemplate]:
    prompts = {name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate)}
    if len(prompts) != 1:
        found = ", ".join(prompts) or "none"
        raise AlgorithmError(
            f"apo improves the one prompt template of the initial resources, and they have {len(prompts)} ({found}); "
            "give one, as in initial_resources={'main_prompt': PromptTemplate(template='...')}"
        )
    [(name, prompt)] = prompts.items()
    if mark := find_mark(prompt.template):
        raise AlgorithmError(
            f"prompt {name!r} contains {mark!r}, which marks the prompt in requests to a model; write it otherwise"
        )
    try:
        prompt.placeholders()
    except ValueError as exc:
        raise AlgorithmError(f"prompt {name!r} cannot be used: {exc}") from exc
    return name, prompt


def _filled(name: str, dataset: Dataset[Any] | None) -> Dataset[Any]:
    if dataset is None or len(dataset) == 0:
        what = "none" if dataset is None else "an empty one"
        raise AlgorithmError(f"apo needs a {name}, and got {what}; it learns from one dataset and chooses by another")
    return dataset
