"""The model that says what is wrong with a prompt: the textual gradient."""

from collections.abc import Sequence

from openai import AsyncOpenAI

from lightning_apo.chat import Answer, ask
from lightning_apo.experiment import Experiment
from lightning_apo.messages import Request, ShownPrompt


class Critic:
    """Asks a model to criticise prompts.

    This is the gradient of Pryzant et al. 2023 (arXiv 2305.03495, section 2.1). There the model sees wrong
    predictions only; here it sees runs of any reward, with what the agent and its models said and did in them.
    """

    def __init__(self, client: AsyncOpenAI, *, model: str, temperature: float, request: Request) -> None:
        self._client = client
        self._model = model
        self._temperature = temperature
        self._request = request

    async def criticise(
        self,
        prompts: Sequence[ShownPrompt],
        experiments: Sequence[Experiment],
        *,
        other_prompts: Sequence[ShownPrompt] = (),
        seed: int,
    ) -> Answer:
        """Return a critique.

        Args:
            prompts: Those to criticise.
            experiments: Runs with them.
            other_prompts: What else the agent uses.
            seed: Sent along, so that an endpoint that honours it gives the same answer again.

        Raises:
            ModelFailed: When the model gave no answer that can be used.
        """
        text = self._request.fill_in(prompts=prompts, other_prompts=other_prompts, experiments=experiments)
        answer = await ask(self._client, text, model=self._model, temperature=self._temperature, seed=seed)
        return answer._replace(text=answer.text.strip())
