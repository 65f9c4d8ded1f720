"""The model that writes a prompt anew."""

import re
from collections.abc import Sequence

from openai import AsyncOpenAI

from lightning_apo.chat import Answer, ask
from lightning_apo.markers import find_mark
from lightning_apo.messages import Request, ShownPrompt
from lightning_core.types import PromptTemplate

_FENCED = re.compile(r"(`{3,})[^\n`]*\n(.*)\n\1", re.DOTALL)
_MARKED = re.compile(r"<prompt_template>(.*)</prompt_template>", re.DOTALL)


class Editor:
    """Asks a model to edit prompts as a critique says.

    This is the edit of Pryzant et al. 2023 (arXiv 2305.03495, section 2.1). There each gradient gives several edits,
    and each edit several paraphrases; here a critique gives one edit of each prompt that it is about.
    """

    def __init__(self, client: AsyncOpenAI, *, model: str, temperature: float, request: Request) -> None:
        self._client = client
        self._model = model
        self._temperature = temperature
        self._request = request

    async def rewrite(
        self, prompt: ShownPrompt, critique: str, *, other_prompts: Sequence[ShownPrompt] = (), seed: int
    ) -> Answer:
        """Return the text of a new template, as an answer. Whether it can be used is for `why_unusable` to say.

        Args:
            prompt: The prompt.
            critique: What is wrong with it, or with all prompts.
            other_prompts: What else the agent uses.
            seed: Sent along, so that an endpoint that honours it gives the same answer again.

        Raises:
            ModelFailed: When the model gave no answer that can be used.
        """
        text = self._request.fill_in(prompt=prompt, other_prompts=other_prompts, critique=critique)
        answer = await ask(self._client, text, model=self._model, temperature=self._temperature, seed=seed)
        return answer._replace(text=unwrapped(answer.text))


def unwrapped(answer: str) -> str:
    """Take a template out of what a model puts around it: white space, a code fence, our own marks."""
    text = answer.strip()
    fenced = _FENCED.fullmatch(text)
    if fenced and fenced[1] not in fenced[2]:
        text = fenced[2].strip()
    marked = _MARKED.fullmatch(text)
    return marked[1].strip() if marked else text


def why_unusable(text: str, parent: PromptTemplate) -> str | None:
    """Say in one line why an edit cannot take its parent's place; None when it can."""
    if not text:
        return "it is empty"
    if mark := find_mark(text):
        return f"it contains {mark!r}, which marks the template in requests to a model"
    try:
        placeholders = PromptTemplate(template=text, engine=parent.engine).placeholders()
    except ValueError as exc:
        return str(exc)
    missing, unknown = sorted(parent.placeholders() - placeholders), sorted(placeholders - parent.placeholders())
    problems = [f"placeholder {name!r} is missing" for name in missing]
    problems += [f"placeholder {name!r} is new" for name in unknown]
    return ", ".join(problems) or None
