"""The model that says what is wrong with a prompt: the textual gradient."""

from collections.abc import Sequence

from openai import AsyncOpenAI

from lightning_apo.chat import ask
from lightning_apo.experiment import Experiment
from lightning_apo.messages import render
from lightning_core.types import PromptTemplate


class Critic:
    """Asks a model to criticise prompts.

    This is the gradient of Pryzant et al. 2023 (arXiv 2305.03495, section 2.1). There the model sees wrong
    predictions only; here it sees runs of any reward, with what the agent said of them.
    """

    def __init__(self, client: AsyncOpenAI, *, model: str, temperature: float) -> None:
        self._client = client
        self._model = model
        self._temperature = temperature

    async def criticise(self, prompt: PromptTemplate, experiments: Sequence[Experiment], *, seed: int) -> str:
        """Return a critique of a prompt.

        Args:
            prompt: The prompt.
            experiments: Runs with it.
            seed: Sent along, so that an endpoint that honours it gives the same answer again.

        Raises:
            ModelFailed: When the model gave no answer that can be used.
        """
        text = render(
            "critic",
            template=prompt.template,
            placeholders=sorted(prompt.placeholders()),
            experiments=experiments,
        )
        critique = await ask(self._client, text, model=self._model, temperature=self._temperature, seed=seed)
        return critique.strip()
